//! What a command prints: for people by default, as JSON on request, and with `--check` the figures and their bounds last.

use std::fmt::{self, Write as _};

use serde::{Deserialize, Deserializer, Serialize};

use crate::company::Company;
use crate::counted::Counted;
use crate::machine::Machine;
use crate::placement::{Distance, Placement};
use crate::rounds::Kept;
use crate::samples::Samples;

/// Work of others, in cores, that is too much beside two spinning threads.
const MOST_COMPANY: f64 = 0.2;
/// A median that many times its floor was not spent in the product: it is a scheduler's turn.
const ABSURD_RATIO: f64 = 50.0;

/// One command's result.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// The command, as given.
    pub command: String,
    /// What it measures, in one sentence.
    pub measures: String,
    /// Where.
    pub machine: Machine,
    /// The placement of the cores, where one matters.
    pub placement: Option<PlacementLine>,
    /// The latencies.
    pub rows: Vec<Row>,
    /// Everything else: rates, counts, sizes.
    pub figures: Vec<Figure>,
    /// Figures as a function of something, for plots.
    pub curves: Vec<Curve>,
    /// What one must know to read them.
    pub notes: Vec<String>,
    /// What they must not exceed, or not fall short of.
    pub bounds: Vec<Bound>,
}

/// The placement under which all rows were measured.
#[derive(Debug, Serialize, Deserialize)]
pub struct PlacementLine {
    /// Near or far.
    pub distance: Distance,
    /// The median probe.
    pub round_trip_ns: f64,
    /// The cores, client first.
    pub cores: String,
    /// Rounds kept.
    pub rounds: usize,
    /// Rounds thrown away.
    pub discarded: usize,
}

/// One series of samples, in microseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Which.
    pub name: String,
    /// How many samples.
    pub samples: usize,
    /// Mean.
    #[serde(deserialize_with = "number")]
    pub mean_us: f64,
    /// Median.
    #[serde(deserialize_with = "number")]
    pub p50_us: f64,
    /// 99 % are not slower.
    #[serde(deserialize_with = "number")]
    pub p99_us: f64,
    /// 99.9 % are not slower.
    #[serde(deserialize_with = "number")]
    pub p999_us: f64,
    /// The slowest.
    #[serde(deserialize_with = "number")]
    pub max_us: f64,
    /// The median as a multiple of the floor's.
    pub ratio: Option<f64>,
    /// The distribution: shares of the samples, and the time in microseconds that they do not exceed.
    pub shares: Vec<(f64, f64)>,
}

/// A number that is not a latency.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// Of what.
    pub name: String,
    /// How much.
    #[serde(deserialize_with = "number")]
    pub value: f64,
    /// Of which unit.
    pub unit: String,
    /// As a multiple of the floor, or of whatever the name says.
    pub ratio: Option<f64>,
}

/// A figure as a function of something.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Curve {
    /// Of what.
    pub name: String,
    /// What it depends on, with the unit.
    pub over: String,
    /// What it is, with the unit.
    pub what: String,
    /// The points.
    pub points: Vec<(f64, f64)>,
}

/// Which side of a bound is the good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sense {
    /// The figure must not exceed it.
    AtMost,
    /// The figure must reach it.
    AtLeast,
}

/// A figure and what it must not exceed, or must reach.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bound {
    /// What is bounded.
    pub what: String,
    /// What was measured.
    #[serde(deserialize_with = "number")]
    pub figure: f64,
    /// The bound.
    pub bound: f64,
    /// Which side of it is the good one.
    pub sense: Sense,
    /// Whether it is.
    pub met: bool,
    /// Where the figure is a share of calls in percent: what was counted. With few calls not the figure is judged but what it leaves plausible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<Counted>,
}

impl Report {
    /// An empty report of this machine.
    pub fn new(command: impl Into<String>, measures: impl Into<String>) -> Report {
        Report {
            command: command.into(),
            measures: measures.into(),
            machine: Machine::ask(),
            placement: None,
            rows: Vec::new(),
            figures: Vec::new(),
            curves: Vec::new(),
            notes: Vec::new(),
            bounds: Vec::new(),
        }
    }

    /// Says where the cores were.
    pub fn placed<T>(&mut self, kept: &Kept<T>, cores: impl fmt::Display) {
        self.placement = Some(PlacementLine {
            distance: kept.distance,
            round_trip_ns: kept.placement.round_trip_ns,
            cores: cores.to_string(),
            rounds: kept.rounds.len(),
            discarded: kept.discarded,
        });
    }

    /// Says where the cores were, where a single probe was made.
    pub fn probed(&mut self, placement: Placement, cores: impl fmt::Display) {
        self.placement = Some(PlacementLine {
            distance: placement.distance(placement),
            round_trip_ns: placement.round_trip_ns,
            cores: cores.to_string(),
            rounds: 1,
            discarded: 0,
        });
    }

    /// Adds a row.
    pub fn row(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Adds a figure that is not a latency.
    pub fn figure(&mut self, name: impl Into<String>, value: f64, unit: &str, ratio: Option<f64>) {
        self.figures.push(Figure { name: name.into(), value, unit: unit.to_owned(), ratio });
    }

    /// Adds a figure as a function of something.
    pub fn curve(&mut self, name: impl Into<String>, over: &str, what: &str, points: Vec<(f64, f64)>) {
        self.curves.push(Curve { name: name.into(), over: over.to_owned(), what: what.to_owned(), points });
    }

    /// Adds a remark.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Says so if another process had the cores: the time that this machine ran other work, or a median that no product explains.
    pub fn note_company(&mut self, company: &Company) {
        let others = company.others();
        let worst = self.rows.iter().filter_map(|row| row.ratio).fold(0.0, f64::max);
        let why = if others >= MOST_COMPANY {
            format!("other work took {:.0} % of one core's time", others * 100.0)
        } else if worst >= ABSURD_RATIO {
            format!("a median is {worst:.0} times its floor")
        } else {
            return;
        };
        self.note(format!("Another process had the cores ({why}): run it on an idle machine, these figures mean little."));
    }

    /// Says that `figure` must not exceed `bound`. A figure that is not a number misses it.
    pub fn bound(&mut self, what: impl Into<String>, figure: f64, bound: f64) {
        self.bounds.push(Bound { what: what.into(), figure, bound, sense: Sense::AtMost, met: figure <= bound, counted: None });
    }

    /// Says that the share of what was counted must not exceed `bound` percent; with few calls, that it does so for certain.
    pub fn bound_counted(&mut self, what: impl Into<String>, counted: Counted, bound: f64) {
        let (figure, met) = (counted.percent(), counted.judged_percent() <= bound);
        self.bounds.push(Bound { what: what.into(), figure, bound, sense: Sense::AtMost, met, counted: Some(counted) });
    }

    /// Says that `figure` must reach `bound`. A figure that is not a number misses it.
    pub fn at_least(&mut self, what: impl Into<String>, figure: f64, bound: f64) {
        self.bounds.push(Bound { what: what.into(), figure, bound, sense: Sense::AtLeast, met: figure >= bound, counted: None });
    }

    /// Whether every bound is met.
    pub fn all_met(&self) -> bool {
        self.bounds.iter().all(|bound| bound.met)
    }

    /// The report for people; with `check`, the bounds last.
    pub fn text(&self, check: bool) -> String {
        let mut out = String::new();
        self.write_text(&mut out, check).expect("a string takes whatever is written to it");
        out
    }

    /// The report for programs.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_else(|error| format!("{{\"error\": \"{error}\"}}"))
    }

    fn write_text(&self, out: &mut String, check: bool) -> fmt::Result {
        writeln!(out, "{}: {}", self.command, self.measures)?;
        writeln!(out, "machine    {}", self.machine)?;
        if let Some(p) = &self.placement {
            write!(out, "placement  {}: a cache line there and back in {:.0} ns, cores {}", p.distance, p.round_trip_ns, p.cores)?;
            writeln!(out, "; {} round{}, {} discarded", p.rounds, if p.rounds == 1 { "" } else { "s" }, p.discarded)?;
        }
        self.write_rows(out)?;
        self.write_figures(out)?;
        if !self.notes.is_empty() {
            writeln!(out)?;
        }
        for note in &self.notes {
            writeln!(out, "{note}")?;
        }
        if check {
            writeln!(out)?;
            for bound in &self.bounds {
                let verdict = if bound.met { "ok" } else { "MISSED" };
                let sense = if bound.sense == Sense::AtLeast { "at least " } else { "" };
                let certain = bound.certain().map_or(String::new(), |certain| format!(" ({certain})"));
                writeln!(out, "check: {} {:.3}{certain}, bound {sense}{}: {verdict}", bound.what, bound.figure, bound.bound)?;
            }
        }
        Ok(())
    }

    fn write_rows(&self, out: &mut String) -> fmt::Result {
        if self.rows.is_empty() {
            return Ok(());
        }
        let width = self.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0).max(4);
        writeln!(out)?;
        writeln!(out, "{:width$} {:>9} {:>10} {:>10} {:>10} {:>10} {:>7}", "us", "samples", "p50", "p99", "p99.9", "max", "ratio")?;
        for row in &self.rows {
            write!(out, "{:width$} {:>9} ", row.name, row.samples)?;
            write!(out, "{:>10.2} {:>10.2} {:>10.2} {:>10.2}", row.p50_us, row.p99_us, row.p999_us, row.max_us)?;
            match row.ratio {
                Some(ratio) => writeln!(out, " {ratio:>7.2}")?,
                None => writeln!(out, " {:>7}", "-")?,
            }
        }
        Ok(())
    }

    fn write_figures(&self, out: &mut String) -> fmt::Result {
        if self.figures.is_empty() {
            return Ok(());
        }
        let width = self.figures.iter().map(|figure| figure.name.chars().count()).max().unwrap_or(0);
        let unit = self.figures.iter().map(|figure| figure.unit.chars().count()).max().unwrap_or(0);
        writeln!(out)?;
        writeln!(out, "{:width$} {:>12} {:unit$} {:>7}", "", "figure", "", "ratio")?;
        for figure in &self.figures {
            write!(out, "{:width$} {:>12.*} {:unit$} ", figure.name, decimals(figure.value), figure.value, figure.unit)?;
            match figure.ratio {
                Some(ratio) => writeln!(out, "{ratio:>7.2}")?,
                None => writeln!(out, "{:>7}", "-")?,
            }
        }
        Ok(())
    }
}

impl Bound {
    /// What is held against the bound where that is not the figure.
    pub fn certain(&self) -> Option<String> {
        let counted = self.counted.filter(|counted| counted.is_few())?;
        let Counted { events, calls } = counted;
        Some(format!("{events} of only {calls} calls: judged is what is certain to 95 %, {:.3}", counted.least_percent()))
    }
}

/// The points of a distribution that a report keeps: closer together where tails are.
const SHARES: [f64; 30] = [
    0.001, 0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.93, 0.95,
    0.97, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9999, 1.0,
];

/// JSON has no word for what is not a number, and writes null.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

/// Three digits are enough, and a count has no decimals.
fn decimals(value: f64) -> usize {
    match value.abs() {
        small if small < 10.0 && small.fract() != 0.0 => 3,
        middle if middle < 100.0 && middle.fract() != 0.0 => 1,
        _ => 0,
    }
}

impl Row {
    /// The row of `samples`; a series without samples reads as not a number.
    pub fn of(name: impl Into<String>, samples: &mut Samples) -> Row {
        let mut quantile = |q| samples.quantile(q).map_or(f64::NAN, |nanos| nanos as f64 / 1e3);
        let shares = SHARES.iter().map(|&share| (share, quantile(share))).filter(|(_, time)| time.is_finite()).collect();
        let (p50_us, p99_us, p999_us, max_us) = (quantile(0.5), quantile(0.99), quantile(0.999), quantile(1.0));
        Row {
            name: name.into(),
            samples: samples.count(),
            mean_us: samples.mean() / 1e3,
            p50_us,
            p99_us,
            p999_us,
            max_us,
            ratio: None,
            shares,
        }
    }

    /// The same with its median compared to `floor_us`.
    pub fn over(self, floor_us: f64) -> Row {
        Row { ratio: Some(self.p50_us / floor_us), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::new("echo --port mem", "a test");
        let mut floor: Samples = [1_000, 2_000, 3_000].into_iter().collect();
        let floor = Row::of("floor", &mut floor);
        let mut product: Samples = [4_000, 5_000, 6_000].into_iter().collect();
        let product = Row::of("call", &mut product).over(floor.p50_us);
        report.bound("p50 / floor", product.ratio.unwrap(), 2.0);
        report.row(floor);
        report.row(product);
        report
    }

    #[test]
    fn the_ratio_is_of_medians_and_a_missed_bound_says_so_last() {
        let report = report();
        assert!(!report.all_met());
        let text = report.text(true);
        assert!(text.trim_end().ends_with("check: p50 / floor 2.500, bound 2: MISSED"), "{text}");
        assert!(!report.text(false).contains("MISSED"));
    }

    #[test]
    fn a_figure_that_must_be_reached_is_missed_from_below() {
        let mut report = Report::new("rate", "a test");
        report.figure("calls", 2.25, "M/s", Some(0.75));
        report.at_least("calls (M/s)", 2.25, 3.0);
        report.at_least("ratio", 0.75, 0.5);
        report.at_least("nothing", f64::NAN, 0.5);
        assert_eq!(report.bounds.iter().map(|bound| bound.met).collect::<Vec<_>>(), [false, true, false]);
        let text = report.text(true);
        assert!(text.contains("2.250 M/s") && text.contains("bound at least 3: MISSED"), "{text}");
        assert!(!text.contains("p99"), "no latencies, no table of them: {text}");
    }

    #[test]
    fn a_share_of_few_calls_is_judged_by_what_is_certain_and_says_so() {
        let mut report = Report::new("tail", "a test");
        report.bound_counted("twice (%)", Counted { events: 17, calls: 1_500 }, 1.0);
        report.bound_counted("twice (%)", Counted { events: 170, calls: 15_000 }, 1.0);
        assert_eq!(report.bounds.iter().map(|bound| bound.met).collect::<Vec<_>>(), [true, false]);
        let text = report.text(true);
        assert!(text.contains("twice (%) 1.133 (17 of only 1500 calls: judged is what is certain to 95 %, 0.7"), "{text}");
        assert!(text.contains("twice (%) 1.133, bound 1: MISSED"), "{text}");
        let back: Report = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(back.text(true), text);
    }

    #[test]
    fn a_median_that_no_product_explains_is_put_down_to_others() {
        let said = |report: &Report| report.notes.iter().any(|note| note.contains("run it on an idle machine"));
        let mut report = report();
        report.note_company(&Company::none());
        assert!(!said(&report));
        let mut product: Samples = [4_000_000].into_iter().collect();
        report.row(Row::of("starved", &mut product).over(2.0));
        report.note_company(&Company::none());
        assert!(said(&report));
    }

    #[test]
    fn json_carries_every_figure() {
        let json: serde_json::Value = serde_json::from_str(&report().json()).unwrap();
        assert_eq!(json["rows"][1]["p50_us"], 5.0);
        assert_eq!(json["bounds"][0]["met"], false);
        assert!(json["machine"]["cpu"].is_string());
        let mut empty = report();
        empty.row(Row::of("none", &mut Samples::default()));
        let back: Report = serde_json::from_str(&empty.json()).unwrap();
        assert!(back.rows[2].p50_us.is_nan());
        assert_eq!(back.text(true), empty.text(true));
    }

    #[test]
    fn a_series_without_samples_meets_no_bound() {
        let mut report = Report::new("x", "y");
        report.bound("nothing", Row::of("none", &mut Samples::default()).p50_us, 1.0);
        assert!(!report.all_met());
    }
}
