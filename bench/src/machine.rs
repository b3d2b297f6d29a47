//! What the figures were measured on.

use std::fmt;
use std::fs;

/// The machine, as far as it can say.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Its cores.
    pub cores: usize,
    /// The kernel's name and release.
    pub kernel: String,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Whether the processor says that it is virtual.
    pub virtual_machine: bool,
}

impl Machine {
    /// Asks the operating system; what it does not say is called unknown.
    pub fn ask() -> Machine {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = rustix::system::uname();
        Machine {
            cpu: field(&cpuinfo, "model name").unwrap_or("unknown processor").to_owned(),
            cores: cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
            kernel: format!("{} {}", name.sysname().to_string_lossy(), name.release().to_string_lossy()),
            memory_mib: memory_kib(&fs::read_to_string("/proc/meminfo").unwrap_or_default()) / 1024,
            virtual_machine: field(&cpuinfo, "flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.virtual_machine { ", virtual" } else { "" };
        write!(f, "{}, {} cores{kind}, {:.0} GiB, {}", self.cpu, self.cores, self.memory_mib as f64 / 1024.0, self.kernel)
    }
}

fn field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    cpuinfo.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then_some(value.trim())
    })
}

fn memory_kib(meminfo: &str) -> u64 {
    field(meminfo, "MemTotal").and_then(|value| value.split(' ').next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_read_from_its_table() {
        let table = "processor\t: 0\nmodel name\t: Some CPU @ 2.00GHz\nflags\t\t: fpu hypervisor sse2\n";
        assert_eq!(field(table, "model name"), Some("Some CPU @ 2.00GHz"));
        assert_eq!(field(table, "colour"), None);
        assert_eq!(memory_kib("MemTotal:       24575000 kB\n"), 24_575_000);
    }

    #[test]
    fn a_machine_always_has_a_line() {
        let line = Machine::ask().to_string();
        assert!(line.contains("cores") && line.contains("Linux"), "{line}");
    }
}
