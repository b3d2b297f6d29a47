//! The soak's processes from the outside: started, asked, frozen, killed, and stopped in order.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tautline_bench::error::BenchError;

use super::gauges::Gauges;

/// How long a process may take to answer. The machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Server,
    Client,
}

/// How a process is started, again and again.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) name: &'static str,
    pub(super) role: Role,
    pub(super) port: u16,
    pub(super) replicas: Vec<u16>,
    pub(super) nobody: u16,
    pub(super) seed: u64,
}

/// A process that runs.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    input: ChildStdin,
    answers: Receiver<String>,
    /// What it had in use before it did anything.
    pub(super) fresh: Gauges,
}

impl Process {
    pub(super) fn start(plan: &Plan) -> Result<Process, BenchError> {
        let program = std::env::current_exe().map_err(BenchError::system("finding this program"))?;
        let replicas: Vec<String> = plan.replicas.iter().map(u16::to_string).collect();
        let mut command = Command::new(program);
        command.args(["soak-part", "--port", &plan.port.to_string(), "--replicas", &replicas.join(",")]);
        command.args(["--nobody", &plan.nobody.to_string(), "--seed", &plan.seed.to_string()]);
        if plan.role == Role::Client {
            command.arg("--client");
        }
        // The C library's allocator keeps freed memory in ways that depend on the order of what was freed. Told to give it back at fixed sizes,
        // resident memory shows what is in use.
        command.envs([("MALLOC_ARENA_MAX", "2"), ("MALLOC_MMAP_THRESHOLD_", "131072"), ("MALLOC_TRIM_THRESHOLD_", "131072")]);
        // A group of its own: Ctrl-C is for the soak alone, which then stops its processes in order.
        command.process_group(0);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(BenchError::system("starting a process"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else { return Err(ended("it has no pipes")) };
        let (tell, answers) = channel();
        let reader = move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.take_while(|line| tell.send(line.clone()).is_ok()).for_each(drop);
        };
        std::thread::Builder::new().name("reader".to_owned()).spawn(reader).map_err(BenchError::system("starting a thread"))?;
        let mut process = Process { child, input, answers, fresh: Gauges::default() };
        match process.answer()?.as_str() {
            "ready" => {}
            other => return Err(ended(other)),
        }
        process.fresh = process.gauges()?;
        Ok(process)
    }

    /// Gives an order that is answered by `ok`.
    pub(super) fn order(&mut self, order: &str) -> Result<(), BenchError> {
        self.tell(order)?;
        match self.answer()?.as_str() {
            "ok" => Ok(()),
            other => Err(ended(other)),
        }
    }

    pub(super) fn gauges(&mut self) -> Result<Gauges, BenchError> {
        self.tell("gauges")?;
        self.read()
    }

    /// Stops it in order: what it had counted, and an error if it did not end as it should.
    pub(super) fn stop(mut self) -> Result<Gauges, BenchError> {
        self.tell("stop")?;
        let last = self.read()?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.child.try_wait().map_err(BenchError::system("waiting for a process"))? {
                Some(status) if status.success() => return Ok(last),
                Some(status) => return Err(ended(&format!("it was to stop in order, and ended with {status}"))),
                None if Instant::now() > deadline => return Err(silent()),
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    /// Ends it at once: SIGKILL.
    pub(super) fn kill(mut self) -> Result<(), BenchError> {
        // Its end by itself, before, is what must be noticed.
        if let Some(status) = self.child.try_wait().map_err(BenchError::system("looking after a process"))? {
            return Err(ended(&format!("it ended by itself with {status}")));
        }
        self.child.kill().map_err(BenchError::system("killing a process"))?;
        self.child.wait().map_err(BenchError::system("waiting for a process")).map(drop)
    }

    /// Lets it stand still for a while, as a host does with a virtual machine.
    pub(super) fn freeze(&mut self, duration: Duration) -> Result<(), BenchError> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| ended("it has no process number"))?;
        kill_process(pid, Signal::STOP).map_err(BenchError::system("stopping a process for a while"))?;
        std::thread::sleep(duration);
        kill_process(pid, Signal::CONT).map_err(BenchError::system("letting a process go on"))
    }

    fn tell(&mut self, order: &str) -> Result<(), BenchError> {
        writeln!(self.input, "{order}").and_then(|()| self.input.flush()).map_err(|_| ended("it takes no more orders"))
    }

    fn read(&mut self) -> Result<Gauges, BenchError> {
        let line = self.answer()?;
        serde_json::from_str(&line).map_err(|_| ended(&format!("it said `{line}`")))
    }

    fn answer(&mut self) -> Result<String, BenchError> {
        use std::sync::mpsc::RecvTimeoutError::{Disconnected, Timeout};
        self.answers.recv_timeout(PATIENCE).map_err(|error| match error {
            Timeout => silent(),
            Disconnected => {
                ended(&self.child.try_wait().ok().flatten().map_or("its output ended".to_owned(), |status| status.to_string()))
            }
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Gone already, unless the soak itself failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn silent() -> BenchError {
    BenchError::Silent { what: "a process of the soak", seconds: PATIENCE.as_secs() }
}

fn ended(why: &str) -> BenchError {
    BenchError::PartnerEnded { what: "soak's process", why: why.to_owned() }
}
