//! Why a program is refused.

/// A program does not compute its graph.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// An instruction is wrong.
    #[error("instruction {index} ({instruction}): {message}")]
    Instruction {
        /// Its position in the program, from 0.
        index: usize,
        /// Its readable line.
        instruction: String,
        /// What is wrong or missing.
        message: String,
    },
    /// The program ends without something that it must leave behind.
    #[error("the program ends after {length} instructions, but {message}")]
    Missing {
        /// Number of instructions.
        length: usize,
        /// What is missing.
        message: String,
    },
}
