//! Plots of a report's figures, as SVG text: distributions of latency, bars of their tails, and curves.

use std::ops::Range;

use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;

use crate::error::BenchError;
use crate::report::{Curve, Row};

const SIZE: (u32, u32) = (640, 360);
const FONT: (&str, u32) = ("sans-serif", 13);

/// Colours that differ in lightness too.
const COLOURS: [RGBColor; 6] = [
    RGBColor(68, 119, 170),
    RGBColor(238, 102, 119),
    RGBColor(34, 136, 51),
    RGBColor(170, 51, 119),
    RGBColor(204, 136, 0),
    RGBColor(90, 90, 90),
];

/// The share of the samples within a latency, for each row; nothing where no row has samples.
pub fn distributions(rows: &[Row]) -> Result<Option<String>, BenchError> {
    let rows: Vec<&Row> = rows.iter().filter(|row| !row.shares.is_empty()).collect();
    let times = rows.iter().flat_map(|row| &row.shares).map(|(_, time)| *time);
    let Some(range) = range(times) else { return Ok(None) };
    drawn(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(36)
            .y_label_area_size(48)
            .build_cartesian_2d(range.log_scale(), 0.0..1.0)?;
        chart.configure_mesh().x_desc("us").y_desc("share of calls within").label_style(FONT).x_label_formatter(&plain).draw()?;
        for (row, colour) in rows.iter().zip(COLOURS.iter().cycle()) {
            let points = row.shares.iter().map(|(share, time)| (time.max(f64::MIN_POSITIVE), *share));
            let line = chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
            line.label(row.name.clone()).legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        }
        legend(&mut chart, SeriesLabelPosition::LowerRight)
    })
    .map(Some)
}

/// Median and tails of each row, as bars on a logarithmic scale; nothing where no row has samples.
pub fn tails(rows: &[Row]) -> Result<Option<String>, BenchError> {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.samples > 0).collect();
    let Some(range) = range(rows.iter().flat_map(|row| [row.p50_us, row.p999_us])) else { return Ok(None) };
    // Room above the bars for the legend.
    let (floor, range) = (range.start, range.start..range.end * 4.0);
    drawn(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(36)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..rows.len() as f64, range.log_scale())?;
        let name = |at: &f64| {
            let row = (at.fract() - 0.5).abs() < 0.01;
            rows.get(*at as usize).filter(|_| row).map_or(String::new(), |row| row.name.clone())
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(rows.len() * 2 + 1)
            .x_label_formatter(&name)
            .y_label_formatter(&plain)
            .y_desc("us")
            .label_style(FONT)
            .draw()?;
        for (n, label) in ["p50", "p99", "p99.9"].into_iter().enumerate() {
            let colour = COLOURS[n];
            let bars = rows.iter().enumerate().map(|(at, row)| {
                let left = at as f64 + 0.14 + 0.24 * n as f64;
                let top = [row.p50_us, row.p99_us, row.p999_us][n];
                Rectangle::new([(left, floor), (left + 0.22, top)], colour.filled())
            });
            let bars = chart.draw_series(bars)?;
            bars.label(label).legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
        }
        legend(&mut chart, SeriesLabelPosition::UpperLeft)
    })
    .map(Some)
}

/// Curves over one quantity, which is drawn on a logarithmic scale; nothing where there are no points.
pub fn curves(curves: &[Curve]) -> Result<Option<String>, BenchError> {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let (Some(over), Some(first)) = (range(points().map(|point| point.0)), curves.first()) else { return Ok(None) };
    let top = points().map(|point| point.1).fold(0.0, f64::max) * 1.35;
    if top.partial_cmp(&0.0) != Some(std::cmp::Ordering::Greater) {
        return Ok(None);
    }
    drawn(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(36)
            .y_label_area_size(48)
            .build_cartesian_2d(over.log_scale(), 0.0..top)?;
        chart.configure_mesh().x_desc(&first.over).y_desc(&first.what).label_style(FONT).x_label_formatter(&plain).draw()?;
        for (curve, colour) in curves.iter().zip(COLOURS.iter().cycle()) {
            let line = chart.draw_series(LineSeries::new(curve.points.iter().copied(), colour.stroke_width(2)))?;
            line.label(curve.name.clone()).legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
            chart.draw_series(curve.points.iter().map(|point| Circle::new(*point, 3, colour.filled())))?;
        }
        legend(&mut chart, SeriesLabelPosition::UpperLeft)
    })
    .map(Some)
}

type Failure<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

fn drawn(
    draw: impl for<'a> FnOnce(&DrawingArea<SVGBackend<'a>, plotters::coord::Shift>) -> Result<(), Failure<'a>>,
) -> Result<String, BenchError> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let failed = BenchError::product("drawing a plot");
        area.fill(&WHITE).and_then(|()| draw(&area)).and_then(|()| area.present()).map_err(failed)?;
    }
    Ok(svg)
}

fn legend<'a, DB, X, Y>(
    chart: &mut ChartContext<'a, DB, Cartesian2d<X, Y>>,
    position: SeriesLabelPosition,
) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>>
where
    DB: DrawingBackend + 'a,
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart
        .configure_series_labels()
        .position(position)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font(FONT)
        .draw()
}

/// From a little below the smallest positive value to a little above the largest.
fn range(values: impl Iterator<Item = f64>) -> Option<Range<f64>> {
    let values = values.filter(|value| value.is_finite() && *value > 0.0);
    let (low, high) = values.fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), value| (low.min(value), high.max(value)));
    if low <= high { Some(low * 0.8..high * 1.25) } else { None }
}

/// A number without exponent or needless decimals.
fn plain(value: &f64) -> String {
    match *value {
        large if large >= 1_048_576.0 && large % 1_048_576.0 == 0.0 => format!("{}Mi", large / 1_048_576.0),
        large if large >= 10.0 => format!("{large:.0}"),
        small => format!("{small:.2}").trim_end_matches('0').trim_end_matches('.').to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::Samples;

    fn rows() -> Vec<Row> {
        let mut fast: Samples = (1_000..2_000).collect();
        let mut slow: Samples = (1..1_000).map(|n| n * 10_000).collect();
        vec![Row::of("fast <&> plain", &mut fast), Row::of("slow", &mut slow)]
    }

    #[test]
    fn each_row_is_drawn_and_named_and_names_are_no_markup() {
        for svg in [distributions(&rows()), tails(&rows())] {
            let svg = svg.unwrap().unwrap();
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
            assert!(svg.contains("slow") && svg.contains("fast &lt;&amp;&gt; plain"), "{svg}");
        }
    }

    #[test]
    fn a_curve_is_drawn_with_its_axes() {
        let curve = Curve {
            name: "messages".to_owned(),
            over: "bytes".to_owned(),
            what: "GB/s".to_owned(),
            points: vec![(1024.0, 1.0), (1_048_576.0, 2.5)],
        };
        let svg = curves(&[curve]).unwrap().unwrap();
        assert!(svg.contains("messages") && svg.contains("GB/s") && svg.contains("bytes"), "{svg}");
    }

    #[test]
    fn nothing_is_no_plot() {
        assert_eq!(distributions(&[]).unwrap(), None);
        assert_eq!(tails(&[Row::of("none", &mut Samples::default())]).unwrap(), None);
        assert_eq!(curves(&[]).unwrap(), None);
    }

    #[test]
    fn labels_are_plain_numbers() {
        assert_eq!([1_048_576.0, 200.0, 0.5, 3.0].map(|value| plain(&value)), ["1Mi", "200", "0.5", "3"]);
    }
}
