//! Who says which hosts there are, where the configuration does not.

use super::{Refusal, Section};

/// Where the hosts come from.
#[derive(Debug, Clone, PartialEq)]
pub struct Discover {
    /// Whom to ask.
    pub source: Source,
    /// Milliseconds between two askings. Envoy answers on its main thread, before 1.38 about all of its clusters.
    pub interval_ms: u64,
    /// Milliseconds after which asking has failed.
    pub timeout_ms: u64,
}

/// Whom to ask for the hosts.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    /// Envoy's admin interface.
    Admin {
        /// Name of the Envoy cluster that leads there.
        cluster: String,
    },
    /// Envoy's resolver. Only where the filter is built with the feature `dns`.
    Dns {
        /// The name that resolves to all hosts.
        name: String,
        /// The port that all of them listen at.
        port: u16,
    },
}

impl Discover {
    /// Takes the section, if it is there.
    pub(super) fn take(root: &mut Section) -> Result<Option<Self>, Refusal> {
        let is_there = root.has("discover");
        let mut section = root.section("discover")?;
        if !is_there {
            return Ok(None);
        }
        let source = Source::take(&mut section)?;
        // Envoy has the answer at hand, a name server is somebody else's.
        let usual_ms = if matches!(source, Source::Dns { .. }) { 5_000 } else { 1_000 };
        let discover = Self {
            source,
            interval_ms: section.whole("interval_ms", usual_ms, 100, 60_000)? as u64,
            timeout_ms: section.whole("timeout_ms", 3_000, 10, 60_000)? as u64,
        };
        section.finish()?;
        Ok(Some(discover))
    }
}

impl Source {
    fn take(section: &mut Section) -> Result<Self, Refusal> {
        if !section.has("dns") {
            // Null is no name, and then there is no port to know either.
            section.take("dns");
            return Ok(Self::Admin { cluster: section.required_text("admin_cluster")? });
        }
        if !cfg!(feature = "dns") {
            let how = "needs a filter that was built with `scripts/build --features dns`";
            return Err(section.refuse("dns", how));
        }
        if section.take("admin_cluster").is_some() {
            return Err(section.refuse("dns", "must not stand beside discover.admin_cluster"));
        }
        let name = section.required_text("dns")?;
        match section.whole("port", 0, 0, usize::from(u16::MAX))? as u16 {
            0 => Err(section.refuse("port", "is required with discover.dns")),
            port => Ok(Self::Dns { name, port }),
        }
    }
}
