//! Classifiers of vectors and images.

use crate::{Conv2d, Conv2dShape};
use unisono_nn::batch::Batch;
use unisono_nn::model::{Block, Flow, Model};
use unisono_nn::modules::{CrossEntropy, Gelu, Linear, LinearInit, Module, Sequential};
use unisono_nn::parameter::{Registry, UnitId};
use unisono_nn::pass::Pass;
use unisono_nn::step_plan::Direction;
use unisono_nn::tensor::Tensor;
use unisono_nn::{Error, Result};

/// Data of a micro-batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    /// Features, sample after sample.
    pub features: Vec<f32>,
    /// Class of each sample.
    pub labels: Vec<u32>,
}

/// Layers with a unit each, and a cross entropy loss over classes.
pub struct Classifier {
    features: usize,
    layers: Vec<Layer>,
}

/// Layer of a classifier. The first one reads the samples, and the last one computes the loss.
struct Layer {
    /// Number of features per sample, in the first layer.
    features: Option<usize>,
    module: Sequential,
    loss: Option<CrossEntropy>,
}

impl Classifier {
    /// Creates an MLP of linear layers `layers.N` from each of `sizes` to the next, with GELU
    /// between them. The first size is the number of features, the last the number of classes.
    ///
    /// # Panics
    /// Panics if there are fewer than two sizes.
    pub fn mlp(registry: &mut Registry, sizes: &[usize]) -> Self {
        assert!(sizes.len() > 1, "a number of features and a number of classes");
        let maps =
            sizes.windows(2).enumerate().map(|(number, sizes)| linear(registry, number, sizes[0], sizes[1]));
        Self::from_layers(sizes[0], maps.collect())
    }

    /// Creates a convolutional network for images of `channels` × `image`: convolutions `layers.N`
    /// of 3 × 3 with stride 2 to each of `widths` channels, each followed by GELU, and a linear
    /// layer to `classes`.
    pub fn conv_net(
        registry: &mut Registry,
        channels: usize,
        image: [usize; 2],
        widths: &[usize],
        classes: usize,
    ) -> Self {
        let (mut inputs, mut extents, mut maps) = (channels, image, Vec::new());
        for (number, outputs) in widths.iter().copied().enumerate() {
            let window = Conv2dShape { inputs, outputs, image: extents, kernel: 3, stride: 2, padding: 1 };
            maps.push(convolution(registry, number, window));
            (inputs, extents) = (outputs, window.output_size());
        }
        maps.push(linear(registry, widths.len(), inputs * extents[0] * extents[1], classes));
        Self::from_layers(channels * image[0] * image[1], maps)
    }

    /// Creates a classifier of `maps`, each a unit, with GELU between them.
    fn from_layers(features: usize, maps: Vec<Box<dyn Module>>) -> Self {
        let last = maps.len() - 1;
        let layer = |(number, map): (usize, Box<dyn Module>)| {
            let gelu = (number > 0).then(|| Box::new(Gelu::Tanh) as Box<dyn Module>);
            Layer {
                features: (number == 0).then_some(features),
                module: Sequential(gelu.into_iter().chain([map]).collect()),
                loss: (number == last).then(CrossEntropy::default),
            }
        };
        Self { features, layers: maps.into_iter().enumerate().map(layer).collect() }
    }

    /// Returns the most probable class of each sample.
    ///
    /// # Errors
    /// Fails for a batch of another kind or size. Returns the error of a failed collective.
    pub fn guesses(&self, pass: &mut Pass<'_>, batch: &Batch) -> Result<Vec<u32>> {
        self.check(pass, batch)?;
        let Samples { features, labels } = batch.get()?;
        let input = Tensor::from_slice(pass.memory(), labels.len(), self.features, features);
        let forward = |input, (number, layer): (usize, &Layer)| {
            pass.unit(UnitId(number), Direction::Forward, |pass| layer.module.forward(pass, input))
        };
        let logits = self.layers.iter().enumerate().try_fold(input, forward)?;
        let guess = |row| {
            let scores = (0..).zip(logits.row(row));
            scores.max_by(|score, other| score.1.total_cmp(other.1)).map_or(0, |(class, _)| class)
        };
        Ok((0..logits.rows()).map(guess).collect())
    }
}

impl Block for Layer {
    fn forward(&self, pass: &mut Pass<'_>, input: Flow) -> Result<Flow> {
        let batch = pass.batch();
        let Samples { features, labels } = batch.get()?;
        let input = match self.features {
            Some(columns) => pass.tensor_from(labels.len(), columns, features)?,
            None => input.into_features(),
        };
        let output = self.module.forward(pass, input)?;
        match &self.loss {
            Some(loss) => loss.forward(pass, output, labels).map(Flow::Loss),
            None => Ok(Flow::Features(output)),
        }
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Flow) -> Result<Flow> {
        let gradient = match &self.loss {
            Some(loss) => loss.backward(pass, gradient.into_loss())?,
            None => gradient.into_features(),
        };
        let gradient = self.module.backward(pass, gradient)?;
        Ok(if self.features.is_some() { Flow::Start } else { Flow::Features(gradient) })
    }
}

impl Model for Classifier {
    fn block_count(&self) -> usize {
        self.layers.len()
    }

    fn block(&self, unit: UnitId) -> &dyn Block {
        &self.layers[unit.0]
    }

    fn feature_shape(&self, _: &Pass<'_>, _: usize) -> Result<[usize; 2]> {
        Err(Error::Unsupported("a pipeline of a classifier: its layers differ in width".to_owned()))
    }

    fn check(&self, _: &Pass<'_>, batch: &Batch) -> Result<()> {
        let Samples { features, labels } = batch.get()?;
        if features.len() == labels.len() * self.features {
            return Ok(());
        }
        let found = format!("{} features of {} samples", features.len(), labels.len());
        Err(Error::invalid(format!("{found} for a classifier of {} features", self.features)))
    }
}

fn linear(registry: &mut Registry, number: usize, inputs: usize, outputs: usize) -> Box<dyn Module> {
    let name = format!("layers.{number}");
    let make = |registry: &mut Registry| Linear::new(registry, inputs, outputs, LinearInit::fan_in(inputs));
    Box::new(registry.unit(&name, make).1)
}

fn convolution(registry: &mut Registry, number: usize, window: Conv2dShape) -> Box<dyn Module> {
    let name = format!("layers.{number}");
    Box::new(registry.unit(&name, |registry| Conv2d::new(registry, window)).1)
}
