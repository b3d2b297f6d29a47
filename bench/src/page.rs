//! Reports as one HTML page that needs nothing beside it: tables, bounds, and plots as inline SVG.

use std::fmt::{self, Write as _};

use crate::error::BenchError;
use crate::plot;
use crate::report::{Bound, Figure, Report, Row, Sense};

const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:1320px;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:.8em 0}td,th{padding:.15em .8em;text-align:right;border-bottom:1px solid #ddd}\
td:first-child,th:first-child{text-align:left}.ok{color:#283}.missed{color:#b22;font-weight:bold}\
.plots{display:flex;flex-wrap:wrap;gap:1em}.plots svg{max-width:100%;height:auto;border:1px solid #ddd}.small{color:#666}";

/// What a command gave: its report, or why there is none.
pub type Outcome = (String, Result<Report, String>);

/// The page.
pub fn html(outcomes: &[Outcome]) -> Result<String, BenchError> {
    let mut page = String::new();
    write_page(&mut page, outcomes)?;
    Ok(page)
}

/// Writing to a string does not fail; drawing might.
fn write_page(page: &mut String, outcomes: &[Outcome]) -> Result<(), BenchError> {
    let wrote = |result: fmt::Result| result.map_err(BenchError::product("writing the page"));
    wrote(head(page, outcomes))?;
    for (command, outcome) in outcomes {
        wrote(writeln!(page, "<h2>{}</h2>", escaped(command)))?;
        match outcome {
            Err(why) => wrote(writeln!(page, "<p class=missed>Could not be measured: {}</p>", escaped(why)))?,
            Ok(report) => {
                wrote(body(page, report))?;
                let plots = [plot::distributions(&report.rows)?, plot::tails(&report.rows)?, plot::curves(&report.curves)?];
                wrote(writeln!(page, "<div class=plots>{}</div>", plots.into_iter().flatten().collect::<String>()))?;
            }
        }
    }
    page.push_str("</body></html>\n");
    Ok(())
}

fn head(page: &mut String, outcomes: &[Outcome]) -> fmt::Result {
    write!(page, "<!doctype html><html lang=en><head><meta charset=utf-8><title>Tautline: measurements</title>")?;
    writeln!(page, "<style>{STYLE}</style></head><body><h1>Tautline: measurements</h1>")?;
    let reports: Vec<&Report> = outcomes.iter().filter_map(|(_, outcome)| outcome.as_ref().ok()).collect();
    if let Some(report) = reports.first() {
        writeln!(page, "<p>{}. What each figure counts is said in bench/README.md.</p>", escaped(&report.machine.to_string()))?;
    }
    writeln!(page, "<table><tr><th>command<th>bounded<th>figure<th>bound<th></tr>")?;
    for report in reports {
        report.bounds.iter().try_for_each(|bound| summary(page, &report.command, bound))?;
    }
    writeln!(page, "</table>")
}

fn summary(page: &mut String, command: &str, bound: &Bound) -> fmt::Result {
    let sense = if bound.sense == Sense::AtLeast { "at least" } else { "at most" };
    let (class, verdict) = if bound.met { ("ok", "ok") } else { ("missed", "missed") };
    let (command, what) = (escaped(command), escaped(&bound.what));
    let certain = bound.certain().map_or(String::new(), |certain| format!("<br><span class=small>{}</span>", escaped(&certain)));
    writeln!(
        page,
        "<tr><td>{command}<td>{what}<td>{:.3}{certain}<td>{sense} {}<td class={class}>{verdict}</tr>",
        bound.figure, bound.bound
    )
}

fn body(page: &mut String, report: &Report) -> fmt::Result {
    writeln!(page, "<p>{}</p>", escaped(&report.measures))?;
    if let Some(p) = &report.placement {
        writeln!(
            page,
            "<p class=small>Placement {}: a cache line there and back in {:.0} ns, cores {}; {} rounds, {} discarded.</p>",
            p.distance,
            p.round_trip_ns,
            escaped(&p.cores),
            p.rounds,
            p.discarded
        )?;
    }
    if !report.rows.is_empty() {
        write!(page, "<table><tr><th>us<th>samples<th>p50<th>p99<th>p99.9<th>max<th>ratio</tr>")?;
        report.rows.iter().try_for_each(|row| latency(page, row))?;
        writeln!(page, "</table>")?;
    }
    if !report.figures.is_empty() {
        write!(page, "<table><tr><th><th>figure<th><th>ratio</tr>")?;
        report.figures.iter().try_for_each(|figure| number(page, figure))?;
        writeln!(page, "</table>")?;
    }
    report.notes.iter().try_for_each(|note| writeln!(page, "<p class=small>{}</p>", escaped(note)))
}

fn latency(page: &mut String, row: &Row) -> fmt::Result {
    write!(page, "<tr><td>{}<td>{}", escaped(&row.name), row.samples)?;
    write!(page, "<td>{:.2}<td>{:.2}<td>{:.2}<td>{:.2}", row.p50_us, row.p99_us, row.p999_us, row.max_us)?;
    write!(page, "<td>{}</tr>", ratio(row.ratio))
}

fn number(page: &mut String, figure: &Figure) -> fmt::Result {
    let (name, unit) = (escaped(&figure.name), escaped(&figure.unit));
    write!(page, "<tr><td>{name}<td>{:.3}<td>{unit}<td>{}</tr>", figure.value, ratio(figure.ratio))
}

fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::Samples;

    #[test]
    fn a_page_holds_figures_plots_bounds_and_what_failed() {
        let mut report = Report::new("echo --port mem", "trips <of> 64 bytes");
        let mut samples: Samples = (1_000..3_000).collect();
        let row = Row::of("call", &mut samples).over(1.0);
        report.bound("call p50 / floor", row.p50_us, 1.5);
        report.row(row);
        report.figure("rate", 1.25, "M/s", None);
        report.curve("messages", "bytes", "GB/s", vec![(1.0, 1.0), (10.0, 2.0)]);
        let failed = ("sessions".to_owned(), Err("no <memory>".to_owned()));
        let page = html(&[("echo --port mem".to_owned(), Ok(report)), failed]).unwrap();
        assert_eq!(page.matches("<svg").count(), 3);
        for expected in ["missed", "1.250", "trips &lt;of&gt; 64 bytes", "Could not be measured: no &lt;memory&gt;"] {
            assert!(page.contains(expected), "no `{expected}`");
        }
        assert!(!page.contains("src=") && !page.contains("href="), "the page needs nothing beside it");
    }
}
