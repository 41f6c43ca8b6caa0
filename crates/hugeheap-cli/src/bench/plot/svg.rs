//! Plots as a file: SVG without scripts, fonts or links, so that any browser and any editor shows it alike.

use super::{Axes, Chart, Panel, Stroke, tick};
use crate::output::bytes;
use std::fmt::Write;

/// Pixels of one panel's plot.
const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 120.0;
/// Around it: labels at the left, title above, marks and times below.
const LEFT: f64 = 70.0;
const ABOVE: f64 = 26.0;
const BELOW: f64 = 40.0;
const RIGHT: f64 = 20.0;
const PANELS_ACROSS: usize = 2;
/// Of a chart's title and key.
const HEAD: f64 = 52.0;

/// A document with all charts, one below the other.
pub(crate) fn document(charts: &[Chart]) -> String {
    let width = PANELS_ACROSS as f64 * (LEFT + WIDTH + RIGHT);
    let height: f64 = charts.iter().map(chart_height).sum();
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let mut top = 0.0;
    for chart in charts {
        draw(&mut text, chart, top);
        top += chart_height(chart);
    }
    text += "</svg>\n";
    text
}

fn chart_height(chart: &Chart) -> f64 {
    HEAD + chart.panels.len().div_ceil(PANELS_ACROSS) as f64 * (ABOVE + HEIGHT + BELOW)
}

const fn style(stroke: Stroke) -> &'static str {
    match stroke {
        Stroke::Solid => "stroke=\"#0b6e8a\" stroke-width=\"1.8\"",
        Stroke::Dotted => "stroke=\"#c77700\" stroke-width=\"1.4\" stroke-dasharray=\"2 3\"",
    }
}

fn draw(text: &mut String, chart: &Chart, top: f64) {
    let axes = chart.axes();
    let (title, key) = (escaped(&chart.title), escaped(&chart.key));
    let _ = writeln!(text, "<text x=\"{LEFT}\" y=\"{}\" font-size=\"15\">{title}</text>", top + 22.0);
    let (mut x, y) = (LEFT, top + 42.0);
    for line in chart.panels.first().map_or(&[][..], |panel| &panel.lines) {
        let _ = writeln!(
            text,
            "<path d=\"M{x} {} h28\" fill=\"none\" {}/><text x=\"{}\" y=\"{y}\">{}</text>",
            y - 4.0,
            style(line.stroke),
            x + 34.0,
            escaped(line.name)
        );
        x += 50.0 + 8.0 * line.name.len() as f64;
    }
    let _ = writeln!(text, "<text x=\"{x}\" y=\"{y}\" fill=\"#555\">{key}</text>");
    for (index, panel) in chart.panels.iter().enumerate() {
        let x = (index % PANELS_ACROSS) as f64 * (LEFT + WIDTH + RIGHT) + LEFT;
        let y = top + HEAD + (index / PANELS_ACROSS) as f64 * (ABOVE + HEIGHT + BELOW) + ABOVE;
        let _ = writeln!(text, "<g transform=\"translate({x} {y})\">");
        draw_panel(text, panel, &axes);
        text.push_str("</g>\n");
    }
}

fn draw_panel(text: &mut String, panel: &Panel, axes: &Axes) {
    let across = |seconds: f64| (seconds / axes.seconds).clamp(0.0, 1.0) * WIDTH;
    let down = |bytes: f64| HEIGHT - (bytes / axes.bytes).clamp(0.0, 1.0) * HEIGHT;
    let _ = writeln!(text, "<text x=\"0\" y=\"-8\" font-weight=\"bold\">{}</text>", escaped(&panel.title));
    for index in 0..=(axes.bytes / axes.bytes_step).round() as u32 {
        let value = f64::from(index) * axes.bytes_step;
        let y = down(value);
        let label = if index == 0 { "0".to_owned() } else { bytes(value as u64) };
        let _ = writeln!(
            text,
            "<path d=\"M0 {y:.1} h{WIDTH}\" stroke=\"#ddd\"/>\
             <text x=\"-6\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{label}</text>",
            y + 4.0
        );
    }
    for time in axes.times() {
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555\">{} s</text>",
            across(time),
            HEIGHT + 30.0,
            tick(time)
        );
    }
    for mark in &panel.marks {
        let x = across(mark.at);
        let _ = writeln!(
            text,
            "<path d=\"M{x:.1} {HEIGHT} v4\" stroke=\"#555\"/>\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\" font-size=\"10\">{}</text>",
            HEIGHT + 14.0,
            mark.letter
        );
    }
    for line in panel.lines.iter().filter(|line| !line.points.is_empty()) {
        let points: Vec<_> = line
            .points
            .iter()
            .map(|&(seconds, bytes)| format!("{:.1},{:.1}", across(seconds), down(bytes)))
            .collect();
        let _ = writeln!(
            text,
            "<polyline points=\"{}\" fill=\"none\" {}/>",
            points.join(" "),
            style(line.stroke)
        );
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn every_line_is_drawn_and_text_is_escaped() {
        let text = document(&[sample(), sample()]);
        assert_eq!(text.matches("<polyline").count(), 4);
        assert!(text.contains("memory &lt;over&gt; time") && text.contains("auto &amp; more"));
        // The peak: half of the width, 28 of 128 MiB below the top.
        assert!(text.contains(&format!("{:.1},{:.1}", WIDTH / 2.0, HEIGHT * 28.0 / 128.0)), "{text}");
        assert_eq!(text.matches("<g ").count(), text.matches("</g>").count());
    }
}
