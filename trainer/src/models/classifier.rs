//! Classifiers of vectors and images.

use super::{Batch, Model};
use crate::error::Result;
use crate::nn::{
    Conv2d, Conv2dShape, CrossEntropy, Gelu, Linear, LinearInit, Module, Sequential, UnitModule,
};
use crate::parameter::Registry;
use crate::pass::Pass;
use crate::tensor::Tensor;

/// Layers with a unit each, and a cross entropy loss over classes.
pub struct Classifier {
    features: usize,
    layers: Sequential,
    loss: CrossEntropy,
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

    /// Creates a classifier of `maps` with GELU between them.
    fn from_layers(features: usize, maps: Vec<Box<dyn Module>>) -> Self {
        let mut layers: Vec<Box<dyn Module>> = Vec::new();
        for map in maps {
            if !layers.is_empty() {
                layers.push(Box::new(Gelu::Tanh));
            }
            layers.push(map);
        }
        Self { features, layers: Sequential(layers), loss: CrossEntropy::default() }
    }

    /// Computes the logits of each sample.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    pub fn logits(&self, pass: &mut Pass<'_>, features: &[f32]) -> Result<Tensor> {
        let rows = features.len() / self.features;
        let input = Tensor::from_slice(pass.memory(), rows, self.features, features);
        self.layers.forward(pass, input)
    }
}

impl Model for Classifier {
    fn forward_each(&self, pass: &mut Pass<'_>, batches: &[Batch<'_>]) -> Result<Vec<f32>> {
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        for batch in batches {
            match *batch {
                Batch::Samples { features, labels } if features.len() == labels.len() * self.features => {
                    inputs.push(pass.tensor_from(labels.len(), self.features, features)?);
                    targets.push(labels);
                }
                _ => return batch.mismatch(&format!("a classifier of {} features", self.features)),
            }
        }
        let logits = self.layers.forward_each(pass, inputs)?;
        let pairs = logits.into_iter().zip(targets).collect();
        pass.each(pairs, |pass, (logits, labels)| self.loss.forward(pass, logits, labels))
    }

    fn backward(&self, pass: &mut Pass<'_>, scale: f32) -> Result<()> {
        let each = vec![(); pass.count()];
        let gradients = pass.each(each, |pass, ()| self.loss.backward(pass, scale))?;
        self.layers.backward_each(pass, gradients).map(drop)
    }
}

fn linear(registry: &mut Registry, number: usize, inputs: usize, outputs: usize) -> Box<dyn Module> {
    let name = format!("layers.{number}");
    let make = |registry: &mut Registry| Linear::new(registry, inputs, outputs, LinearInit::fan_in(inputs));
    Box::new(UnitModule::new(registry, &name, &name, make))
}

fn convolution(registry: &mut Registry, number: usize, window: Conv2dShape) -> Box<dyn Module> {
    let name = format!("layers.{number}");
    Box::new(UnitModule::new(registry, &name, &name, |registry| Conv2d::new(registry, window)))
}
