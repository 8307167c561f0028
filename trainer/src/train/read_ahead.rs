//! Threads that read the batches of coming steps.

use crate::data::{Sampler, TokenWindows};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use unisono_nn::batch::Batch;
use unisono_nn::error::{Error, Result};
use unisono_parallel::context_parallel::SequenceChunk;

/// Micro-batches of a step.
pub(super) type StepBatches = Vec<Batch>;

/// Way to read the micro-batches of a step.
#[derive(Clone)]
pub(super) struct BatchReader {
    pub(super) samples: Arc<TokenWindows>,
    pub(super) micro_batch: usize,
    pub(super) micro_sequences: usize,
    pub(super) chunk: SequenceChunk,
}

impl BatchReader {
    /// Reads the samples of these numbers.
    pub(super) fn read(&self, numbers: &[u64]) -> Result<StepBatches> {
        let parts = numbers.chunks(self.micro_batch);
        let chunks = |part| {
            (0..self.micro_sequences).map(move |index| (part, self.chunk.within(index, self.micro_sequences)))
        };
        parts.flat_map(chunks).map(|(part, chunk)| self.samples.batch(part, chunk).map(Batch::new)).collect()
    }
}

/// Threads that read ahead of a sampler. Steps are dealt to them in turn, so that their order is
/// that of the sampler.
pub(super) struct ReadAhead {
    workers: Vec<Worker>,
    /// Sampler of the step after the last one under way.
    ahead: Sampler,
    /// Worker of each step under way, the next one first.
    under_way: VecDeque<usize>,
    next: usize,
}

/// Thread that reads batches in the order of its requests. It ends when its requests end.
struct Worker {
    requests: Sender<Vec<u64>>,
    batches: Receiver<Result<StepBatches>>,
}

/// Steps under way per worker: one that is read, and one that is complete.
const STEPS_PER_WORKER: usize = 2;

impl ReadAhead {
    /// Starts `workers` threads that read what `sampler` returns next.
    ///
    /// # Errors
    /// Fails if a thread cannot be started.
    pub(super) fn start(workers: usize, reader: &BatchReader, sampler: &Sampler) -> Result<Self> {
        let workers = (0..workers).map(|_| Worker::start(reader.clone())).collect::<Result<Vec<_>>>()?;
        Ok(Self { workers, ahead: sampler.clone(), under_way: VecDeque::new(), next: 0 })
    }

    /// Returns the batches of the next step, in the order of the sampler.
    ///
    /// # Errors
    /// Returns the error of reading these batches.
    pub(super) fn next(&mut self) -> Result<StepBatches> {
        let ended = || Error::invalid("a thread that reads data panicked: a bug");
        // Later steps are requested before this one is awaited, so that no worker is idle
        // meanwhile.
        while self.under_way.len() < STEPS_PER_WORKER * self.workers.len() {
            let numbers = self.ahead.next_or_new_epoch();
            self.workers[self.next].requests.send(numbers).map_err(|_| ended())?;
            self.under_way.push_back(self.next);
            self.next = (self.next + 1) % self.workers.len();
        }
        let worker = self.under_way.pop_front().expect("a step under way");
        self.workers[worker].batches.recv().map_err(|_| ended())?
    }

    /// Returns the number of steps that the threads were told to read, and that no call has taken.
    #[cfg(test)]
    pub(super) fn steps_under_way(&self) -> usize {
        self.under_way.len()
    }
}

impl Worker {
    fn start(reader: BatchReader) -> Result<Self> {
        let (requests, numbers) = channel::<Vec<u64>>();
        let (sender, batches) = channel();
        let read = move || {
            for numbers in numbers {
                // Nobody waits for the batches of a run that has ended.
                if sender.send(reader.read(&numbers)).is_err() {
                    break;
                }
            }
        };
        let failed = |error| Error::Unsupported(format!("data.workers: no thread: {error}"));
        thread::Builder::new().name("data worker".to_owned()).spawn(read).map_err(failed)?;
        Ok(Self { requests, batches })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{LastBatch, TokenSource};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};
    use unisono_nn::batch::TokenBatch;

    /// Tokens that count how often they are read.
    struct CountedTokens(Arc<AtomicUsize>);

    impl TokenSource for CountedTokens {
        fn count(&self) -> usize {
            1 + 4 * 24
        }

        fn read(&self, start: usize, target: &mut [u32]) -> Result<()> {
            target.iter_mut().zip(start..).for_each(|(token, place)| *token = place as u32);
            self.0.fetch_add(1, Ordering::Release);
            Ok(())
        }
    }

    fn reader(reads: &Arc<AtomicUsize>) -> BatchReader {
        let samples = Arc::new(TokenWindows::new(CountedTokens(Arc::clone(reads)), 4).unwrap());
        BatchReader { samples, micro_batch: 2, micro_sequences: 1, chunk: SequenceChunk::WHOLE }
    }

    fn tokens(batches: StepBatches) -> Vec<Vec<u32>> {
        batches.iter().map(|batch| batch.get::<TokenBatch>().unwrap().inputs.clone()).collect()
    }

    #[test]
    fn batches_come_in_the_order_of_the_sampler_over_epochs() {
        let sampler = Sampler::new(24, 4, Some(7), LastBatch::Drop).unwrap();
        let reader = reader(&Arc::default());
        for workers in [1, 2, 5] {
            let (mut ahead, mut direct) =
                (ReadAhead::start(workers, &reader, &sampler).unwrap(), sampler.clone());
            for step in 0..20 {
                let expected = tokens(reader.read(&direct.next_or_new_epoch()).unwrap());
                assert_eq!(tokens(ahead.next().unwrap()), expected, "{workers} workers, step {step}");
            }
        }
    }

    #[test]
    fn next_steps_are_read_while_a_step_computes() {
        let sampler = Sampler::new(24, 2, None, LastBatch::Drop).unwrap();
        let reads = Arc::default();
        let mut ahead = ReadAhead::start(1, &reader(&reads), &sampler).unwrap();
        for step in 1..6 {
            ahead.next().unwrap();
            // The 2 sequences of the next step are read, although nobody asks for them yet.
            let begun = Instant::now();
            while reads.load(Ordering::Acquire) < 2 * (step + 1) {
                assert!(begun.elapsed() < Duration::from_secs(100), "step {step}: nothing is read ahead");
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
