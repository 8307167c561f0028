//! Text of tokens, as models read and write it.

use super::{Tokenizer, text};
use unisono_nn::error::Result;

/// Map between text and the tokens of a model.
pub enum TextCodec {
    /// Tokens are bytes, and [`text::END_OF_TEXT`].
    Bytes,
    /// Tokens are those of a tokenizer.
    Tokenizer(Box<Tokenizer>),
}

/// Function that decodes one token after another.
pub(super) type DecodeStream<'a> = Box<dyn FnMut(u32) -> Result<String> + 'a>;

impl TextCodec {
    /// Returns the map for a model with this tokenizer, or without one and with this vocabulary;
    /// `None` if its tokens have no text.
    pub fn new(tokenizer: Option<Tokenizer>, vocabulary: usize) -> Option<Self> {
        let bytes = (vocabulary == text::VOCAB_SIZE as usize).then_some(Self::Bytes);
        tokenizer.map(|tokenizer| Self::Tokenizer(Box::new(tokenizer))).or(bytes)
    }

    /// Encodes text.
    ///
    /// # Errors
    /// Fails if the tokenizer does not know a part of the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match self {
            Self::Bytes => Ok(text::encode(text)),
            Self::Tokenizer(tokenizer) => tokenizer.encode(text),
        }
    }

    /// Encodes the start of a text, with the tokens that the model has before each text.
    ///
    /// # Errors
    /// Fails as [`TextCodec::encode`] does.
    pub fn encode_start(&self, text: &str) -> Result<Vec<u32>> {
        let tokens = self.encode(text)?;
        let start_tokens = match self {
            Self::Bytes => &[],
            // A text may begin with the name of the token.
            Self::Tokenizer(tokenizer) if tokens.starts_with(tokenizer.start_of_text()) => &[],
            Self::Tokenizer(tokenizer) => tokenizer.start_of_text(),
        };
        Ok([start_tokens, &tokens].concat())
    }

    /// Decodes tokens.
    ///
    /// # Errors
    /// Fails for a tokenizer whose decoder does.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        let mut stream = self.stream(&[])?;
        tokens.iter().map(|&token| stream(token)).collect()
    }

    /// Returns true if a generated text ends at this token.
    pub fn ends_text(&self, token: u32) -> bool {
        match self {
            Self::Bytes => false,
            Self::Tokenizer(tokenizer) => tokenizer.ends_text(token),
        }
    }

    /// Returns a function that decodes one token after another, after those of `prompt`. The text
    /// of a token is empty if it ends within a character.
    ///
    /// # Errors
    /// Fails for a tokenizer whose decoder does.
    pub fn stream(&self, prompt: &[u32]) -> Result<DecodeStream<'_>> {
        let mut stream: DecodeStream<'_> = match self {
            Self::Bytes => Box::new(byte_stream()),
            Self::Tokenizer(tokenizer) => Box::new(tokenizer.stream()),
        };
        // The first token after the prompt can complete a character of the prompt.
        prompt.iter().try_for_each(|token| stream(*token).map(drop))?;
        Ok(stream)
    }
}

/// Returns a function that decodes bytes as they complete characters.
fn byte_stream() -> impl FnMut(u32) -> Result<String> {
    let mut pending = Vec::new();
    move |token| {
        let Ok(byte) = u8::try_from(token) else {
            return Ok(String::from_utf8_lossy(&std::mem::take(&mut pending)).into_owned() + "\n\n");
        };
        pending.push(byte);
        // An error without a length is that of a character whose other bytes can still follow.
        let is_partial = std::str::from_utf8(&pending).is_err_and(|error| error.error_len().is_none());
        match is_partial {
            true => Ok(String::new()),
            false => Ok(String::from_utf8_lossy(&std::mem::take(&mut pending)).into_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_decoded_by_characters() {
        let text = "aé€😀\u{301}z";
        let mut stream = TextCodec::Bytes.stream(&text::encode("prompt é")).unwrap();
        let mut parts: Vec<_> = text::encode(text).into_iter().map(|token| stream(token).unwrap()).collect();
        assert_eq!(parts.concat(), text);
        parts.retain(|part| !part.is_empty());
        assert_eq!(parts, ["a", "é", "€", "😀", "\u{301}", "z"]);
        assert_eq!([0xc3, 0x41, 256].map(|token| stream(token).unwrap()), ["", "\u{fffd}A", "\n\n"]);
    }
}
