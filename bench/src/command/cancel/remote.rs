//! The loser in a process of its own: this program again, told what to do by lines on its standard input.
//!
//! Parent: `allow ADDRESS`, `enter STAGE`, `leave`; the end of the input ends it. Child, first: `ready FLOOR LOSER`; then after each line
//! `ok`, and after `leave` what was noted: the anchors and a line a flip, then `end`.

use std::io::{BufRead, BufReader, BufWriter, Lines, StdinLock, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tautline_bench::anchor::Anchor;
use tautline_bench::duo::{Duo, Serve};
use tautline_bench::error::BenchError;
use tautline_bench::floor::udp::UdpEcho;
use tautline_rpc::{Address, Clock, Time};

use super::loser::{Allow, Flips, Loser, Shared};
use super::{CANCEL, Partner};

/// The other process, from the parent's side.
pub(super) struct Remote {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    stage: usize,
}

impl Remote {
    /// Starts it on `core`; gives the address of its UDP echo and of the loser.
    pub(super) fn start(core: usize) -> Result<(Remote, SocketAddr, Address), BenchError> {
        let program = std::env::current_exe().map_err(BenchError::system("finding this program"))?;
        let mut child = Command::new(program)
            .args(["cancel-loser", "--core", &core.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(BenchError::system("starting the loser's process"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else { return Err(ended("it has no pipes")) };
        let mut remote = Remote { child, input: Some(input), output: BufReader::new(output).lines(), stage: usize::MAX };
        let ready = remote.line()?;
        let addresses = ready.strip_prefix("ready ").and_then(|rest| rest.split_once(' '));
        let (floor, loser) = addresses.ok_or_else(|| ended(&ready))?;
        let parse = |text: &str| text.parse::<SocketAddr>().map_err(|_| ended(&ready));
        Ok((remote, parse(floor)?, parse(loser)?.into()))
    }

    fn tell(&mut self, line: &str) -> Result<(), BenchError> {
        let written = self.input.as_mut().map(|input| writeln!(input, "{line}").and_then(|()| input.flush()));
        match written {
            Some(Ok(())) => match self.line()?.as_str() {
                "ok" => Ok(()),
                other => Err(ended(other)),
            },
            _ => Err(ended("it takes no more orders")),
        }
    }

    fn line(&mut self) -> Result<String, BenchError> {
        match self.output.next() {
            Some(Ok(line)) => Ok(line),
            _ => Err(ended("its output ended")),
        }
    }

    fn numbers<const N: usize>(&mut self) -> Result<Option<[u64; N]>, BenchError> {
        let line = self.line()?;
        if line == "end" {
            return Ok(None);
        }
        let numbers: Option<Vec<u64>> = line.split(' ').map(|number| number.parse().ok()).collect();
        numbers.and_then(|numbers| numbers.try_into().ok()).map(Some).ok_or_else(|| ended(&line))
    }
}

impl Partner for Remote {
    fn enter(&mut self, stage: usize) -> Result<(), BenchError> {
        self.stage = stage;
        self.tell(&format!("enter {stage}"))
    }

    fn leave(&mut self) -> Result<Option<Flips>, BenchError> {
        self.tell("leave")?;
        let mut flips = Flips::default();
        for anchor in &mut flips.anchors {
            let Some([own, kernel]) = self.numbers()? else { return Ok(None) };
            *anchor = Anchor { own, kernel };
        }
        while let Some([claimed, flipped]) = self.numbers()? {
            flips.times.push((Time::from_nanos(claimed), Time::from_nanos(flipped)));
        }
        Ok((self.stage == CANCEL).then_some(flips))
    }

    fn allow(&mut self, winner: Address) -> Result<(), BenchError> {
        self.tell(&format!("allow {winner}"))
    }

    fn is_remote(&self) -> bool {
        true
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // The end of its input ends it.
        drop(self.input.take());
        if self.child.wait().is_err() {
            let _ = self.child.kill();
        }
    }
}

fn ended(why: &str) -> BenchError {
    BenchError::PartnerEnded { what: "loser's process", why: why.to_owned() }
}

/// The other process: serves until its input ends.
pub(crate) fn run_loser(core: usize) -> Result<(), BenchError> {
    let clock = Clock::tsc();
    let (duo, (floor, loser, flips, allow)) = Duo::start(core, move || {
        let echo = UdpEcho::open()?;
        let floor = echo.address()?;
        let (loser, (address, flips, allow)) = Loser::open("udp://127.0.0.1:0", clock)?;
        Ok((vec![Box::new(echo) as Box<dyn Serve>, Box::new(loser)], (floor, address, flips, allow)))
    })?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let said = writeln!(out, "ready {floor} {loser}").and_then(|()| out.flush());
    said.map_err(BenchError::system("writing to the parent"))?;
    obey(duo, &flips, &allow, std::io::stdin().lock(), &mut out)
}

fn obey(mut duo: Duo, flips: &Shared, allow: &Allow, input: StdinLock<'_>, out: &mut impl Write) -> Result<(), BenchError> {
    for line in input.lines() {
        let line = line.map_err(BenchError::system("reading from the parent"))?;
        let mut answer = "ok\n".to_owned();
        match line.split_once(' ') {
            None if line == "leave" => {
                duo.leave()?;
                let flips = flips.take().unwrap_or_default();
                for Anchor { own, kernel } in flips.anchors {
                    answer += &format!("{own} {kernel}\n");
                }
                for (claimed, flipped) in flips.times {
                    answer += &format!("{} {}\n", claimed.as_nanos(), flipped.as_nanos());
                }
                answer += "end\n";
            }
            Some(("enter", stage)) => duo.enter(stage.parse().unwrap_or(usize::MAX - 2))?,
            Some(("allow", winner)) => match winner.parse::<SocketAddr>() {
                Ok(winner) => allow.tell(winner.into()),
                Err(_) => return Err(ended("it was told an address that is none")),
            },
            _ => return Err(ended("it was told something unknown")),
        }
        out.write_all(answer.as_bytes()).and_then(|()| out.flush()).map_err(BenchError::system("writing to the parent"))?;
    }
    Ok(())
}
