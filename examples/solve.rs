//! Solves weighted constraint problems: `cargo run --release --example solve -- FILE...` prints one JSON line for each.
//!
//! Files are JSON of the format `hap-cfn-1`, plain or gzipped. The time does not include reading and parsing.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use flate2::read::MultiGzDecoder;
use hap::synthesis::solver::{Instance, Limits, solve};
use serde_json::json;

fn main() -> ExitCode {
    let files: Vec<String> = std::env::args().skip(1).collect();
    if files.is_empty() {
        let _ = writeln!(io::stderr(), "usage: solve FILE... (hap-cfn-1, JSON or gzipped JSON)");
        return ExitCode::from(2);
    }
    for file in &files {
        let line = describe(Path::new(file));
        let written = line.and_then(|line| writeln!(io::stdout(), "{line}").map_err(|error| error.to_string()));
        if let Err(error) = written {
            let _ = writeln!(io::stderr(), "{file}: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Solves the problem of a file and describes the solution.
fn describe(file: &Path) -> Result<String, String> {
    let text = read(file).map_err(|error| error.to_string())?;
    let instance = Instance::from_json(&text).map_err(|error| error.to_string())?;
    let start = Instant::now();
    let solution = solve(&instance.problem, &Limits::default()).map_err(|error| error.to_string())?;
    let seconds = start.elapsed().as_secs_f64();
    let line = json!({
        "name": instance.name,
        "cost": solution.cost,
        "bound": solution.bound,
        "seconds": seconds,
        "table_entries": solution.table_entries,
        "states": solution.states,
    });
    Ok(line.to_string())
}

/// The text of a file, unpacked if it is gzipped.
fn read(file: &Path) -> io::Result<String> {
    let bytes = fs::read(file)?;
    let mut text = String::new();
    if bytes.starts_with(&[0x1f, 0x8b]) {
        MultiGzDecoder::new(&bytes[..]).read_to_string(&mut text)?;
    } else {
        (&bytes[..]).read_to_string(&mut text)?;
    }
    Ok(text)
}
