//! Conditions of `--fail-if`: a small language of comparisons.
//!
//! ```text
//!   any        = all { "or" all }
//!   all        = one { "and" one }
//!   one        = "(" any ")" | METRIC [ ".value" | ".low" | ".high" ] OPERATOR NUMBER
//!   OPERATOR   = ">" | ">=" | "<" | "<="
//!   NUMBER     = 1.05 | 512M      a suffix K, M, G, T only after .value
//! ```
//!
//! A metric alone is its ratio to the first command's: the ratio of the medians, or 1 when the difference is not
//! significant, so that chance breaks no build.

use super::compare::Comparison;
use super::metric::Metric;
use crate::cli;

/// A condition as it was typed and as it is meant.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Condition {
    pub(crate) text: String,
    expression: Expression,
}

#[derive(Clone, Debug, PartialEq)]
enum Expression {
    Any(Vec<Expression>),
    All(Vec<Expression>),
    Compare { metric: Metric, aspect: Aspect, operator: Operator, number: f64 },
}

/// What of a metric is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aspect {
    Ratio,
    Value,
    Low,
    High,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Above,
    AtLeast,
    Below,
    AtMost,
}

impl Condition {
    /// # Errors
    /// What is wrong, and where.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let tokens = tokens(text)?;
        let mut parser = Parser { tokens: &tokens, at: 0, end: text.chars().count() };
        let expression = parser.any()?;
        match parser.peek() {
            None => Ok(Self { text: text.to_owned(), expression }),
            Some(token) => {
                Err(wrong(token.at, &format!("'{}' where 'and', 'or' or the end should be", token.text)))
            }
        }
    }

    /// Whether it is met by a command.
    ///
    /// # Errors
    /// The metric that was not measured.
    pub(crate) fn met(&self, find: &dyn Fn(Metric) -> Option<Comparison>) -> Result<bool, Metric> {
        self.expression.met(find)
    }
}

impl Expression {
    fn met(&self, find: &dyn Fn(Metric) -> Option<Comparison>) -> Result<bool, Metric> {
        match self {
            Self::Any(all) => {
                let met = all.iter().map(|one| one.met(find)).collect::<Result<Vec<_>, _>>()?;
                Ok(met.contains(&true))
            }
            Self::All(all) => {
                let met = all.iter().map(|one| one.met(find)).collect::<Result<Vec<_>, _>>()?;
                Ok(!met.contains(&false))
            }
            Self::Compare { metric, aspect, operator, number } => {
                let it = find(*metric).ok_or(*metric)?;
                let value = match aspect {
                    Aspect::Value => it.median,
                    // Both are zero: no difference. One from zero: no ratio tells how much.
                    _ if it.ratio.is_none() && !it.is_significant() => 1.0,
                    _ if it.ratio.is_none() => f64::INFINITY,
                    Aspect::Ratio if !it.is_significant() => 1.0,
                    Aspect::Ratio => it.ratio.map_or(1.0, |ratio| ratio.value),
                    Aspect::Low => it.ratio.map_or(1.0, |ratio| ratio.low),
                    Aspect::High => it.ratio.map_or(1.0, |ratio| ratio.high),
                };
                Ok(match operator {
                    Operator::Above => value > *number,
                    Operator::AtLeast => value >= *number,
                    Operator::Below => value < *number,
                    Operator::AtMost => value <= *number,
                })
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Token {
    text: String,
    /// Letters before it.
    at: usize,
}

fn wrong(at: usize, what: &str) -> String {
    format!("at letter {}: {what}", at + 1)
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || "_.".contains(letter);
    let letters: Vec<char> = text.chars().collect();
    let (mut tokens, mut at) = (Vec::new(), 0);
    while at < letters.len() {
        let begin = at;
        match letters[at] {
            letter if letter.is_whitespace() => {
                at += 1;
                continue;
            }
            '(' | ')' => at += 1,
            '<' | '>' => at += if letters.get(at + 1) == Some(&'=') { 2 } else { 1 },
            letter if is_word(letter) => {
                while at < letters.len() && is_word(letters[at]) {
                    at += 1;
                }
            }
            letter => return Err(wrong(at, &format!("'{letter}' means nothing here; such as: rss > 1.05"))),
        }
        tokens.push(Token { text: letters[begin..at].iter().collect(), at: begin });
    }
    Ok(tokens)
}

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
    end: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a Token> {
        self.tokens.get(self.at)
    }

    fn next(&mut self, what: &str) -> Result<&'a Token, String> {
        let token = self.peek().ok_or_else(|| wrong(self.end, &format!("{what} is missing")))?;
        self.at += 1;
        Ok(token)
    }

    fn takes(&mut self, text: &str) -> bool {
        let is_it = self.peek().is_some_and(|token| token.text == text);
        self.at += usize::from(is_it);
        is_it
    }

    fn any(&mut self) -> Result<Expression, String> {
        let mut all = vec![self.all()?];
        while self.takes("or") {
            all.push(self.all()?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Expression::Any(all) })
    }

    fn all(&mut self) -> Result<Expression, String> {
        let mut all = vec![self.one()?];
        while self.takes("and") {
            all.push(self.one()?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Expression::All(all) })
    }

    fn one(&mut self) -> Result<Expression, String> {
        if self.takes("(") {
            let inner = self.any()?;
            return if self.takes(")") { Ok(inner) } else { Err(wrong(self.end, "a ')' is missing")) };
        }
        let token = self.next("a metric, such as rss,")?;
        let (name, aspect) = token.text.split_once('.').unwrap_or((&token.text, ""));
        let metric = Metric::named(name).ok_or_else(|| {
            let all: Vec<_> = Metric::all().map(Metric::name).collect();
            wrong(token.at, &format!("'{name}' is no metric; there are: rss, {}", all.join(", ")))
        })?;
        let aspect = match aspect {
            "" => Aspect::Ratio,
            "value" => Aspect::Value,
            "low" => Aspect::Low,
            "high" => Aspect::High,
            _ => return Err(wrong(token.at, &format!("'.{aspect}' is none of .value, .low, .high"))),
        };
        let token = self.next("one of > >= < <=")?;
        let operator = match token.text.as_str() {
            ">" => Operator::Above,
            ">=" => Operator::AtLeast,
            "<" => Operator::Below,
            "<=" => Operator::AtMost,
            other => return Err(wrong(token.at, &format!("'{other}' is none of > >= < <="))),
        };
        let token = self.next("a number")?;
        let number = token.text.parse::<f64>().ok().filter(|number| number.is_finite()).or_else(|| {
            (aspect == Aspect::Value)
                .then(|| cli::bytes(&token.text).ok().map(|bytes| bytes as f64))
                .flatten()
        });
        let hint = if aspect == Aspect::Value { "such as 1.5 or 512M" } else { "such as 1.05" };
        let number =
            number.ok_or_else(|| wrong(token.at, &format!("'{}' is no number, {hint}", token.text)))?;
        Ok(Expression::Compare { metric, aspect, operator, number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Estimate;

    fn met(text: &str) -> Result<bool, Metric> {
        let of = |value: f64, significant: bool| Comparison {
            median: 100.0 * value,
            half_spread: 0.0,
            ratio: Some(Estimate { value, low: value - 0.02, high: value + 0.02 }),
            probability: Some(if significant { 0.001 } else { 0.5 }),
        };
        Condition::parse(text).unwrap().met(&|metric| match metric {
            Metric::PeakRss => Some(of(1.1, true)),
            Metric::Wall => Some(of(1.2, false)),
            Metric::MajorFaults => Some(Comparison { ratio: None, ..of(0.0, false) }),
            _ => None,
        })
    }

    #[test]
    fn conditions_are_about_ratios_unless_said_otherwise() {
        assert_eq!(met("rss > 1.05"), Ok(true));
        assert_eq!(met("rss>1.15"), Ok(false));
        assert_eq!(met("rss.low >= 1.08"), Ok(true));
        assert_eq!(met("rss.high < 1.1"), Ok(false));
        assert_eq!(met("rss.value > 109 and rss.value < 1K"), Ok(true));
        assert_eq!(met("major_faults > 1"), Ok(false), "none in either");
    }

    #[test]
    fn chance_meets_no_condition_about_a_ratio() {
        assert_eq!(met("wall > 1.05"), Ok(false));
        assert_eq!(met("wall.value > 1.05"), Ok(true));
    }

    #[test]
    fn and_binds_tighter_than_or() {
        assert_eq!(met("rss > 1 or rss > 2 and rss > 3"), Ok(true));
        assert_eq!(met("(rss > 1 or rss > 2) and rss > 3"), Ok(false));
        assert_eq!(met("dtlb > 1 or rss > 1"), Err(Metric::named("dtlb").unwrap()), "not measured is told");
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        for (text, expected) in [
            ("", "at letter 1: a metric, such as rss, is missing"),
            ("apples > 1", "at letter 1: 'apples' is no metric"),
            ("rss", "at letter 4: one of > >= < <= is missing"),
            ("rss = 1", "at letter 5: '=' means nothing here"),
            ("rss > many", "at letter 7: 'many' is no number, such as 1.05"),
            ("rss > 512M", "at letter 7: '512M' is no number"),
            ("rss.median > 1", "at letter 1: '.median' is none of"),
            ("rss > 1 rss", "at letter 9: 'rss' where"),
            ("(rss > 1", "at letter 9: a ')' is missing"),
            ("rss > 1 and", "at letter 12: a metric"),
        ] {
            let error = Condition::parse(text).unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
