//! HTTP/1 as far as metrics need it: what a client asks for, and the bytes of an answer.
//!
//! One connection is one request, so nothing behind it is read, and every answer says that the connection ends.

use super::arguments::Format;

/// Longest request in bytes, headers included: Prometheus's have about 400.
pub(super) const REQUEST_BYTES: usize = 8 << 10;

/// Most headers.
const HEADERS: usize = 64;

/// What a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Metrics {
        format: Format,
        /// Of the answer, what is before the metrics.
        only_head: bool,
    },
    Root,
    Elsewhere,
    /// Neither GET nor HEAD.
    Method,
    Bad,
    Long,
}

/// `None`: there is more to come.
pub(super) fn understood(bytes: &[u8]) -> Option<Request> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(bytes) {
        Ok(httparse::Status::Partial) if bytes.len() >= REQUEST_BYTES => return Some(Request::Long),
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => return Some(Request::Long),
        Err(_) => return Some(Request::Bad),
    }
    let only_head = match parsed.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Some(Request::Method),
    };
    let path = parsed.path.unwrap_or_default();
    let accepted = parsed.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("accept"));
    let accepted = accepted.filter_map(|header| core::str::from_utf8(header.value).ok());
    Some(match path.split('?').next() {
        Some("/metrics") => {
            Request::Metrics { format: wanted(accepted.collect::<Vec<_>>().join(",").as_str()), only_head }
        }
        Some("/") => Request::Root,
        _ => Request::Elsewhere,
    })
}

/// The format that a client likes best, by its `Accept`. Without a word about OpenMetrics it is Prometheus's own.
fn wanted(accept: &str) -> Format {
    let liking = |media: &str| {
        let weights = accept.split(',').filter_map(|range| {
            let mut parts = range.split(';').map(str::trim);
            if parts.next() != Some(media) {
                return None;
            }
            let weight = parts.find_map(|part| part.strip_prefix("q="));
            Some(weight.map_or(1.0, |weight| weight.parse::<f32>().unwrap_or(0.0)))
        });
        weights.fold(0.0, f32::max)
    };
    let (openmetrics, plain) = (liking("application/openmetrics-text"), liking("text/plain"));
    if openmetrics > 0.0 && openmetrics >= plain { Format::Openmetrics } else { Format::Prometheus }
}

/// An answer that is ready to be sent.
#[derive(Debug)]
pub(super) struct Answer {
    bytes: Vec<u8>,
    /// Bytes of it before the body.
    head: usize,
}

impl Answer {
    /// What was asked for.
    pub(super) fn ok(media_type: &str, body: &str) -> Self {
        Self::new("200 OK", media_type, body)
    }

    /// A line for people.
    pub(super) fn said(status: &str, text: &str) -> Self {
        Self::new(status, "text/plain; charset=utf-8", &format!("{text}\n"))
    }

    /// The answer to what is no request for metrics; `None` for one that is.
    pub(super) fn to(request: Request) -> Option<Self> {
        Some(match request {
            Request::Metrics { .. } => return None,
            Request::Root => Self::said("200 OK", "hugeheap: metrics are at /metrics"),
            Request::Elsewhere => Self::said("404 Not Found", "metrics are at /metrics"),
            Request::Method => Self::said("405 Method Not Allowed", "GET and HEAD only"),
            Request::Bad => Self::said("400 Bad Request", "this is not HTTP/1"),
            Request::Long => Self::said(
                "431 Request Header Fields Too Large",
                "a request has 8 KiB at most, and 64 headers",
            ),
        })
    }

    fn new(status: &str, media_type: &str, body: &str) -> Self {
        let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
        let mut bytes = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
            body.len()
        )
        .into_bytes();
        let head = bytes.len();
        bytes.extend_from_slice(body.as_bytes());
        Self { bytes, head }
    }

    /// What is sent.
    pub(super) fn bytes(&self, only_head: bool) -> &[u8] {
        if only_head { &self.bytes[..self.head] } else { &self.bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_understood_when_they_are_whole() {
        let of = |text: &str| understood(text.as_bytes());
        assert_eq!(of(""), None);
        assert_eq!(of("GET /metrics HTTP/1.1\r\nHost: x\r\n"), None);
        let only_head = false;
        assert_eq!(
            of("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"),
            Some(Request::Metrics { format: Format::Prometheus, only_head })
        );
        let only_head = true;
        assert_eq!(
            of("HEAD /metrics?x=1 HTTP/1.0\r\n\r\n"),
            Some(Request::Metrics { format: Format::Prometheus, only_head })
        );
        assert_eq!(of("GET / HTTP/1.1\r\n\r\n"), Some(Request::Root));
        assert_eq!(of("GET /metricsx HTTP/1.1\r\n\r\n"), Some(Request::Elsewhere));
        assert_eq!(of("POST /metrics HTTP/1.1\r\n\r\n"), Some(Request::Method));
        assert_eq!(of("\x16\x03\x01\x02"), Some(Request::Bad));
        let many = "X: y\r\n".repeat(HEADERS + 1);
        assert_eq!(of(&format!("GET / HTTP/1.1\r\n{many}\r\n")), Some(Request::Long));
        assert_eq!(of(&format!("GET /{} HTTP/1.1\r\n", "x".repeat(REQUEST_BYTES))), Some(Request::Long));
    }

    #[test]
    fn the_format_is_the_one_liked_best() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
        assert_eq!(wanted(prometheus), Format::Openmetrics);
        assert_eq!(wanted("application/openmetrics-text"), Format::Openmetrics);
        assert_eq!(wanted("text/plain, application/openmetrics-text"), Format::Openmetrics, "both alike");
        for accept in [
            "",
            "*/*",
            "text/plain",
            "text/plain, application/openmetrics-text;q=0.9",
            "application/openmetrics-text;q=0",
        ] {
            assert_eq!(wanted(accept), Format::Prometheus, "{accept}");
        }
    }

    #[test]
    fn an_answer_to_head_has_the_length_of_the_body_and_no_body() {
        let answer = Answer::ok("text/plain", "metrics");
        let head = String::from_utf8(answer.bytes(true).to_vec()).unwrap();
        assert!(head.contains("Content-Length: 7\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        assert_eq!(answer.bytes(false), [head.as_bytes(), b"metrics"].concat());
        assert!(Answer::to(Request::Metrics { format: Format::Prometheus, only_head: false }).is_none());
    }
}
