//! The properties that the tests on stable have, for the targets beside this.

#[path = "../../core/properties/mod.rs"]
pub mod properties;
