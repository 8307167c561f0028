//! Runs one rank's program: visits of the model's blocks, and messages to other stages.

use crate::pipeline::{Instruction, Message, Payload, Program};
use std::collections::{HashMap, VecDeque};
use std::slice::from_mut;
use unisono::{Communicator, MessageInfo, Work};
use unisono_nn::allocator::Allocator;
use unisono_nn::error::Result;
use unisono_nn::model::{Flow, Model, run_visit};
use unisono_nn::pass::{Pass, WaitKind};
use unisono_nn::tensor::Tensor;

/// Runs `program` as one rank of the pipeline `stages`. The loss of each micro-batch counts `scale`
/// times in gradients.
///
/// Returns the loss of each micro-batch on the rank with the last stage, and zeros on the others. A
/// receive is posted as soon as the receive before it on the same link has ended, so that values
/// arrive while the rank computes. A send ends in the background. Values of a GPU go through host
/// memory.
///
/// # Errors
/// Returns the error of a failed collective or message.
pub fn run_program<M: Model + ?Sized>(
    model: &M,
    pass: &mut Pass<'_>,
    program: &Program,
    stages: &Communicator,
    scale: f32,
) -> Result<Vec<f32>> {
    Executor::run_all(model, pass, program, stages, scale).map(|executor| executor.losses)
}

/// Runs a program without backward as one rank of the pipeline `stages`. Returns the output of the
/// last block on rank [`Program::last_rank`], and nothing on the others.
///
/// # Errors
/// Returns the error of a failed collective or message.
pub fn run_forward_program<M: Model + ?Sized>(
    model: &M,
    pass: &mut Pass<'_>,
    program: &Program,
    stages: &Communicator,
) -> Result<Option<Flow>> {
    let executor = Executor::run_all(model, pass, program, stages, 0.0)?;
    Ok(executor.ready.into_values().next())
}
struct Executor<'a, M: ?Sized> {
    model: &'a M,
    program: &'a Program,
    scale: f32,
    links: Links<'a>,
    /// Values that wait for their pass, or for their send.
    ready: HashMap<Message, Flow>,
    losses: Vec<f32>,
}

impl<'a, M: Model + ?Sized> Executor<'a, M> {
    fn run_all(
        model: &'a M,
        pass: &mut Pass<'_>,
        program: &'a Program,
        stages: &'a Communicator,
        scale: f32,
    ) -> Result<Self> {
        pass.set_loss_scale(scale);
        let shapes =
            (0..pass.count()).map(|micro| model.feature_shape(pass, micro)).collect::<Result<_>>()?;
        let links = Links::new(program, stages, pass.memory(), shapes);
        let losses = vec![0.0; pass.count()];
        let mut executor = Self { model, program, scale, links, ready: HashMap::new(), losses };
        for instruction in &program.instructions {
            executor.run(pass, instruction)?;
        }
        // The last sends run in the background, and their errors would be lost with them.
        executor.links.finish(pass)?;
        Ok(executor)
    }

    fn run(&mut self, pass: &mut Pass<'_>, instruction: &Instruction) -> Result<()> {
        match instruction {
            Instruction::Compute { needs, gives, visits } => {
                let input = needs.map_or(Flow::Start, |message| self.take(message));
                let output = self.compute(pass, input, visits.clone())?;
                self.ready.extend(gives.map(|message| (message, output)));
            }
            Instruction::Send(message, peer) => {
                let tensor = self.take(*message).into_features().into_host(pass.memory())?;
                self.links.send(pass, *message, *peer, tensor)?;
            }
            Instruction::Receive(message, peer) => {
                let tensor = self.links.receive(pass, *message, *peer)?;
                self.ready.insert(*message, Flow::Features(tensor));
            }
        }
        Ok(())
    }

    fn take(&mut self, message: Message) -> Flow {
        self.ready.remove(&message).expect("a checked schedule computes values before their use")
    }

    /// Runs visits of one micro-batch, from `input` to the value after the last visit.
    fn compute(&mut self, pass: &mut Pass<'_>, input: Flow, visits: std::ops::Range<usize>) -> Result<Flow> {
        let visits = &self.program.plan.visits()[visits];
        let mut flow = input;
        for visit in visits {
            run_visit(self.model, pass, visit, from_mut(&mut flow))?;
            // Backward of this micro-batch begins with the same value, which then is the gradient
            // of the loss.
            if let Flow::Loss(loss) = &mut flow {
                self.losses[visit.micro_batches.start] = std::mem::replace(loss, self.scale);
            }
        }
        Ok(flow)
    }
}

/// One direction between this rank and a peer, of one payload.
type Link = (Payload, usize);

/// Messages under way.
struct Links<'a> {
    stages: &'a Communicator,
    memory: Allocator,
    /// Rows and columns of the features between stages, by micro-batch.
    shapes: Vec<[usize; 2]>,
    /// Micro-batches of each link whose receives are not posted yet.
    unposted: HashMap<Link, VecDeque<usize>>,
    /// The posted receive of each link.
    posted: HashMap<Link, Work<(Tensor, MessageInfo)>>,
    sending: HashMap<Link, VecDeque<Work<Tensor>>>,
}

/// Messages of one link that may be under way: one arrives while the next is computed.
const SENDS_MAX: usize = 2;

impl<'a> Links<'a> {
    fn new(program: &Program, stages: &'a Communicator, memory: &Allocator, shapes: Vec<[usize; 2]>) -> Self {
        let mut links = Self {
            stages,
            memory: memory.clone(),
            shapes,
            unposted: HashMap::new(),
            posted: HashMap::new(),
            sending: HashMap::new(),
        };
        for instruction in &program.instructions {
            if let Instruction::Receive(message, peer) = instruction {
                links.unposted.entry((message.what, *peer)).or_default().push_back(message.micro);
            }
        }
        // Each link has one posted receive, because a buffer is allocated for each.
        let keys: Vec<_> = links.unposted.keys().copied().collect();
        keys.into_iter().for_each(|link| links.post(link));
        links
    }

    /// Posts the next receive of a link, if there is one more.
    fn post(&mut self, link: Link) {
        let Some(micro) = self.unposted.get_mut(&link).and_then(VecDeque::pop_front) else { return };
        let [rows, columns] = self.shapes[micro];
        let buffer = Tensor::new(&self.memory, rows, columns);
        let receive = self.stages.irecv(buffer, link.1, tag(link.0));
        self.posted.insert(link, receive);
    }

    fn receive(&mut self, pass: &Pass<'_>, message: Message, peer: usize) -> Result<Tensor> {
        let link = (message.what, peer);
        let receive = self.posted.remove(&link).expect("posted before");
        let received = pass.waits().time_for(WaitKind::Stage, "receive from a stage", || receive.wait());
        // The next value arrives while the rank computes with this one.
        self.post(link);
        let (tensor, _) = received?;
        match pass.device() {
            Some(device) => device.tensor_from(tensor.rows(), tensor.columns(), tensor.data()),
            None => Ok(tensor),
        }
    }

    fn send(&mut self, pass: &Pass<'_>, message: Message, peer: usize, tensor: Tensor) -> Result<()> {
        // A send owns its tensor until the peer has taken it, so without a limit a slow peer would
        // fill this rank's memory.
        let under_way = self.sending.entry((message.what, peer)).or_default();
        while under_way.len() >= SENDS_MAX {
            let first = under_way.pop_front().expect("one of them");
            pass.waits().time_for(WaitKind::Stage, "send to a stage", || first.wait())?;
        }
        under_way.push_back(self.stages.isend(tensor, peer, tag(message.what)));
        Ok(())
    }

    /// Waits for all sends.
    fn finish(&mut self, pass: &Pass<'_>) -> Result<()> {
        for send in self.sending.drain().flat_map(|(_, sends)| sends) {
            pass.waits().time_for(WaitKind::Stage, "send to a stage", || send.wait())?;
        }
        Ok(())
    }
}

fn tag(what: Payload) -> u64 {
    match what {
        Payload::Activation => 0,
        Payload::Gradient => 1,
    }
}
