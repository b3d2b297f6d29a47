//! Service classes: which of two waiting things goes first.

/// A service class, most urgent first. It travels on the wire and orders packets, run queues and credits alike
/// ("The Tail at Scale": requests that a person waits for go first).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Class {
    /// A person waits for it.
    Interactive = 0,
    /// The default.
    Normal = 1,
    /// Large transfers and batch work that somebody still wants today.
    Bulk = 2,
    /// Work that may wait for idle time.
    Background = 3,
}

impl Class {
    /// How many classes there are.
    pub const COUNT: usize = 4;
    /// Every class, most urgent first.
    pub const ALL: [Class; Class::COUNT] = [Class::Interactive, Class::Normal, Class::Bulk, Class::Background];

    /// The class as an index, 0 the most urgent.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The class of this index or wire value, `None` if there is no such class.
    pub const fn from_index(index: u8) -> Option<Class> {
        match index {
            0 => Some(Class::Interactive),
            1 => Some(Class::Normal),
            2 => Some(Class::Bulk),
            3 => Some(Class::Background),
            _ => None,
        }
    }

    /// The name used in metrics and on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Class::Interactive => "interactive",
            Class::Normal => "normal",
            Class::Bulk => "bulk",
            Class::Background => "background",
        }
    }
}

impl std::fmt::Display for Class {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::Class;

    #[test]
    fn a_class_survives_its_wire_value_and_an_unknown_value_is_refused() {
        for class in Class::ALL {
            assert_eq!(Class::from_index(class.index() as u8), Some(class));
        }
        assert_eq!(Class::from_index(Class::COUNT as u8), None);
    }
}
