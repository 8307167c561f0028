//! Trace of a rank for Perfetto and chrome://tracing: a process per rank, with one track for
//! computing and one for waiting, and the same for its GPU.

use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use unisono::Communicator;
use unisono_cuda::device::{Event, Stream};
use unisono_nn::error::{Error, Result};
use unisono_nn::gpu_timeline::{GpuSpan, GpuTimeline, GpuTrack};
use unisono_nn::parameter::{Inventory, ParameterId, UnitId};
use unisono_nn::pass::WaitSpan;
use unisono_nn::step_plan::{Direction, StepPlan};
use unisono_nn::strategy::{DeviceStore, Strategy};
use unisono_parallel::data_parallel::DataParallel;

/// Track of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TraceTrack {
    /// Modules, optimizer and data.
    Compute = 0,
    /// Waits for other ranks.
    Communication = 1,
    /// Units on the GPU.
    GpuCompute = 2,
    /// Collectives on the GPU.
    GpuCommunication = 3,
}

struct TraceEvent {
    name: String,
    lane: TraceTrack,
    start: Instant,
    time: Duration,
}

/// Events of one rank, recorded while enabled.
pub(super) struct Trace {
    is_on: bool,
    /// Time of the start on the system clock, which other processes share, and on a monotonic
    /// clock.
    origin: (Duration, Instant),
    events: Vec<TraceEvent>,
    /// Recorder of the GPU; `None` without one, or if nothing is traced.
    pub(super) gpu: Option<GpuTimeline>,
}

impl Trace {
    /// Creates an empty trace.
    pub(super) fn new(is_on: bool) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { is_on, origin: (now, Instant::now()), events: Vec::new(), gpu: None }
    }

    /// Takes over what the GPU has done since the last call.
    ///
    /// # Errors
    /// Returns an error of the GPU driver.
    pub(super) fn add_gpu_work(&mut self) -> Result<()> {
        let Some(gpu) = self.gpu.as_ref().filter(|_| self.is_on) else { return Ok(()) };
        for GpuSpan { name, track, start, time } in gpu.take()? {
            let lane = match track {
                GpuTrack::Compute => TraceTrack::GpuCompute,
                GpuTrack::Communication => TraceTrack::GpuCommunication,
            };
            self.events.push(TraceEvent { name, lane, start, time });
        }
        Ok(())
    }

    /// Stops recording.
    pub(super) fn stop(&mut self) {
        self.is_on = false;
        self.gpu.iter().for_each(GpuTimeline::stop);
    }

    /// Records an event from `start` until now.
    pub(super) fn add(&mut self, lane: TraceTrack, name: impl FnOnce() -> String, start: Instant) {
        if self.is_on {
            // The name is built only if it is kept, since most runs record nothing.
            self.events.push(TraceEvent { name: name(), lane, start, time: start.elapsed() });
        }
    }

    /// Records a wait in a layer.
    pub(super) fn add_wait(&mut self, wait: &WaitSpan) {
        if self.is_on {
            let WaitSpan { name, start, time, .. } = *wait;
            self.events.push(TraceEvent {
                name: name.to_owned(),
                lane: TraceTrack::Communication,
                start,
                time,
            });
        }
    }

    /// Runs `body` and records it.
    pub(super) fn span<R>(&mut self, lane: TraceTrack, name: &str, body: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = body();
        self.add(lane, || name.to_owned(), start);
        result
    }

    /// Returns the events in the trace format, for this rank.
    fn events(&self, rank: usize) -> Vec<Value> {
        let (clock, origin) = self.origin;
        let micros =
            |start: Instant| (clock + start.saturating_duration_since(origin)).as_nanos() as f64 / 1e3;
        let event = |event: &TraceEvent| {
            json!({
                "name": event.name, "ph": "X", "pid": rank, "tid": event.lane as u8,
                "ts": micros(event.start), "dur": event.time.as_nanos() as f64 / 1e3,
            })
        };
        let name = |kind: &str, lane: u8, name: String| json!({"name": kind, "ph": "M", "pid": rank, "tid": lane, "args": {"name": name}});
        let names = [
            name("process_name", 0, format!("rank {rank}")),
            name("thread_name", TraceTrack::Compute as u8, "compute".to_owned()),
            name("thread_name", TraceTrack::Communication as u8, "communication".to_owned()),
        ];
        let gpu =
            [(TraceTrack::GpuCompute, "GPU compute"), (TraceTrack::GpuCommunication, "GPU communication")];
        let gpu = gpu.map(|(track, title)| name("thread_name", track as u8, title.to_owned()));
        let gpu = gpu.into_iter().filter(|_| self.gpu.is_some());
        names.into_iter().chain(gpu).chain(self.events.iter().map(event)).collect()
    }

    /// Writes the events of all ranks to one file, from rank 0. All ranks must call this.
    ///
    /// # Errors
    /// Fails if the file cannot be written. Returns the error of a failed collective.
    pub(super) fn write(&self, path: &Path, world: &Communicator) -> Result<()> {
        let text = Value::from(self.events(world.rank())).to_string();
        // The exchange is a collective, so the ranks that write nothing take part in it, too.
        let texts = world.all_gather_object(&text)?;
        if world.rank() > 0 {
            return Ok(());
        }
        let mut events = Vec::new();
        for text in texts {
            let more: Vec<Value> = serde_json::from_str(&text).map_err(|error| Error::file(path, error))?;
            events.extend(more);
        }
        let trace = json!({"displayTimeUnit": "ms", "traceEvents": events});
        std::fs::write(path, trace.to_string()).map_err(|error| Error::file(path, error))
    }
}

/// Strategy wrapper that traces waits for a unit's weights, and computing with them.
pub(super) struct TracedStrategy<'a> {
    strategy: &'a mut dyn DataParallel,
    inventory: &'a Inventory,
    trace: &'a mut Trace,
    /// Start of the computation: the last time a unit's weights were complete.
    since: Instant,
    /// Stream of the modules on a GPU, and the start of the computation there.
    stream: Option<&'a Stream>,
    gpu_since: Option<Event>,
}

impl<'a> TracedStrategy<'a> {
    /// Wraps `strategy` and records its events in `trace`.
    pub(super) fn new(
        strategy: &'a mut dyn DataParallel,
        inventory: &'a Inventory,
        trace: &'a mut Trace,
        stream: Option<&'a Stream>,
    ) -> Self {
        Self { strategy, inventory, trace, since: Instant::now(), stream, gpu_since: None }
    }
}

fn span_name(inventory: &Inventory, unit: UnitId, way: Direction) -> String {
    let way = if way == Direction::Forward { "forward" } else { "backward" };
    format!("{way} {}", inventory[unit].name)
}

impl Strategy for TracedStrategy<'_> {
    fn begin_step(&mut self, plan: &StepPlan) -> Result<()> {
        self.strategy.begin_step(plan)
    }

    fn pre_unit(&mut self, unit: UnitId, way: Direction) -> Result<()> {
        let start = Instant::now();
        self.strategy.pre_unit(unit, way)?;
        self.trace.add(
            TraceTrack::Communication,
            || format!("weights of {}", self.inventory[unit].name),
            start,
        );
        // The wait for weights has a span of its own, so the span of the computation begins after
        // it.
        self.since = Instant::now();
        if let (Some(gpu), Some(stream)) = (&self.trace.gpu, self.stream) {
            self.gpu_since = gpu.begin(stream)?;
        }
        Ok(())
    }

    fn post_unit(&mut self, unit: UnitId, way: Direction) -> Result<()> {
        // The span ends before the strategy is called, because exchanges that it starts are no
        // computation.
        self.trace.add(TraceTrack::Compute, || span_name(self.inventory, unit, way), self.since);
        if let (Some(gpu), Some(stream)) = (&self.trace.gpu, self.stream) {
            let name = span_name(self.inventory, unit, way);
            gpu.end(GpuTrack::Compute, name, stream, self.gpu_since.take())?;
        }
        self.strategy.post_unit(unit, way)
    }

    fn grad_ready(&mut self, id: ParameterId) -> Result<()> {
        let start = Instant::now();
        self.strategy.grad_ready(id)?;
        self.trace.add(
            TraceTrack::Communication,
            || format!("gradient of {}", self.inventory[id].name),
            start,
        );
        Ok(())
    }

    fn weights(&self, id: ParameterId) -> &[f32] {
        self.strategy.weights(id)
    }

    fn weights_and_gradient(&mut self, id: ParameterId) -> Option<(&[f32], &mut [f32])> {
        self.strategy.weights_and_gradient(id)
    }

    fn device_store(&self, id: ParameterId) -> Option<&dyn DeviceStore> {
        self.strategy.device_store(id)
    }

    fn device_store_mut(&mut self, id: ParameterId) -> Option<&mut dyn DeviceStore> {
        self.strategy.device_store_mut(id)
    }
}
