//! Convolutions of images.

use unisono_matmul::{Matrix, MatrixMut, matmul};
use unisono_nn::Result;
use unisono_nn::allocator::F32Vec;
use unisono_nn::modules::{LinearInit, Module};
use unisono_nn::ops::Operand;
use unisono_nn::parameter::{Parameter, ParameterId, Registry};
use unisono_nn::pass::Pass;
use unisono_nn::tensor::Tensor;

/// Dimensions of a convolution, as in PyTorch's `Conv2d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2dShape {
    /// Input channels.
    pub inputs: usize,
    /// Output channels.
    pub outputs: usize,
    /// Height and width of the image.
    pub image: [usize; 2],
    /// Height and width of the kernel.
    pub kernel: usize,
    /// Distance between neighboring windows in pixels.
    pub stride: usize,
    /// Width of the zero padding around the image.
    pub padding: usize,
}

impl Conv2dShape {
    /// Returns the height and width of the output.
    ///
    /// # Panics
    /// Panics if the kernel does not fit the image.
    pub fn output_size(&self) -> [usize; 2] {
        self.image.map(|extent| (extent + 2 * self.padding - self.kernel) / self.stride + 1)
    }

    /// Returns the weights per output channel.
    pub fn kernel_len(&self) -> usize {
        self.inputs * self.kernel * self.kernel
    }

    /// Returns the elements of one image with all channels.
    fn image_len(&self) -> usize {
        self.inputs * self.image[0] * self.image[1]
    }

    /// Returns the pixels of one output channel.
    fn output_len(&self) -> usize {
        self.output_size()[0] * self.output_size()[1]
    }

    /// Calls `meet` with the index of every element of the unfolded image, and its index in the
    /// image; `None` for padding.
    fn for_each_tap(&self, mut meet: impl FnMut(usize, Option<usize>)) {
        let ([height, width], [rows, columns]) = (self.image, self.output_size());
        let coordinate = |along: usize, tap: usize, extent: usize| {
            (along * self.stride + tap).checked_sub(self.padding).filter(|position| *position < extent)
        };
        let mut index = 0;
        for tap in 0..self.kernel_len() {
            let (channel, tap) = (tap / (self.kernel * self.kernel), tap % (self.kernel * self.kernel));
            for row in 0..rows {
                let y = coordinate(row, tap / self.kernel, height);
                for column in 0..columns {
                    let x = coordinate(column, tap % self.kernel, width);
                    meet(index, y.zip(x).map(|(y, x)| (channel * height + y) * width + x));
                    index += 1;
                }
            }
        }
    }
}

/// Computes y = W ∗ x + b for images: one matrix product per image, of weights and unfolded image
/// (`im2col`).
///
/// (images, inputs × height × width) → (images, outputs × height × width), with W of outputs ×
/// inputs × kernel × kernel. Saves its input.
pub struct Conv2d {
    weight: ParameterId,
    bias: ParameterId,
    shape: Conv2dShape,
}

impl Conv2d {
    /// Creates the module with `weight` and `bias`.
    pub fn new(registry: &mut Registry, window: Conv2dShape) -> Self {
        let Conv2dShape { inputs, outputs, kernel, .. } = window;
        let start = LinearInit::fan_in(window.kernel_len());
        let weight = registry.add(Parameter::new("weight", &[outputs, inputs, kernel, kernel], start.weight));
        let bias = registry.add(Parameter::new("bias", &[outputs], start.weight));
        Self { weight, bias, shape: window }
    }

    /// Allocates one unfolded image.
    fn im2col_buffer(&self, pass: &Pass<'_>) -> F32Vec {
        pass.floats(self.shape.kernel_len() * self.shape.output_len())
    }

    fn im2col(&self, image: &[f32], columns: &mut [f32]) {
        self.shape.for_each_tap(|index, pixel| columns[index] = pixel.map_or(0.0, |pixel| image[pixel]));
    }

    /// Returns W as a matrix of outputs × taps.
    fn matrix<'a>(&self, weight: &'a [f32]) -> Matrix<'a> {
        Matrix::new(weight, self.shape.outputs, self.shape.kernel_len())
    }

    fn accumulate(&self, pass: &mut Pass<'_>, input: &Tensor, gradient: &Tensor) -> Result<()> {
        let (taps, places, outputs) = (self.shape.kernel_len(), self.shape.output_len(), self.shape.outputs);
        let (mut room, threads) = (self.im2col_buffer(pass), pass.threads());
        pass.accumulate(self.bias, |_, sums| {
            let sums = sums.host();
            for (channel, of_channel) in gradient.data().chunks_exact(places).enumerate() {
                sums[channel % outputs] += of_channel.iter().sum::<f32>();
            }
            Ok(())
        })?;
        pass.accumulate(self.weight, |_, sums| {
            let sums = sums.host();
            for row in 0..input.rows() {
                self.im2col(input.row(row), &mut room);
                let slopes = Matrix::new(gradient.row(row), outputs, places);
                let sums = MatrixMut::new(sums, outputs, taps);
                matmul(sums, 1.0, 1.0, slopes, Matrix::new(&room, taps, places).t(), threads);
            }
            Ok(())
        })
    }
}

impl Module for Conv2d {
    fn forward(&self, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        pass.expect_host("a convolution")?;
        assert_eq!(input.columns(), self.shape.image_len(), "images of another size");
        let (taps, places, outputs) = (self.shape.kernel_len(), self.shape.output_len(), self.shape.outputs);
        let mut output = pass.tensor(input.rows(), outputs * places);
        let (mut room, threads) = (self.im2col_buffer(pass), pass.threads());
        let (weight, bias) = (self.matrix(pass.weights(self.weight)), pass.weights(self.bias));
        for row in 0..input.rows() {
            self.im2col(input.row(row), &mut room);
            let channels = output.row_mut(row);
            channels.chunks_exact_mut(places).zip(bias).for_each(|(channel, bias)| channel.fill(*bias));
            matmul(
                MatrixMut::new(channels, outputs, places),
                1.0,
                1.0,
                weight,
                Matrix::new(&room, taps, places),
                threads,
            );
        }
        pass.save(input);
        Ok(output)
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Tensor) -> Result<Tensor> {
        let mut result: Tensor = pass.restore();
        self.accumulate(pass, &result, &gradient)?;
        let (taps, places, outputs) = (self.shape.kernel_len(), self.shape.output_len(), self.shape.outputs);
        let (mut room, threads) = (self.im2col_buffer(pass), pass.threads());
        let weight = self.matrix(pass.weights(self.weight));
        for row in 0..result.rows() {
            let slopes = Matrix::new(gradient.row(row), outputs, places);
            matmul(MatrixMut::new(&mut room, taps, places), 0.0, 1.0, weight.t(), slopes, threads);
            let pixels = result.row_mut(row);
            pixels.fill(0.0);
            self.shape.for_each_tap(|index, pixel| {
                pixel.into_iter().for_each(|pixel| pixels[pixel] += room[index])
            });
        }
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unisono_nn::modules::GradCheck;

    fn naive(window: Conv2dShape, x: &[f64], weights: &[Vec<f64>]) -> Vec<f64> {
        let (k, [height, width], [rows, columns]) = (window.kernel, window.image, window.output_size());
        let pixel = |channel: usize, y: usize, x_at: usize| {
            let (y, x_at) = (y.wrapping_sub(window.padding), x_at.wrapping_sub(window.padding));
            if y < height && x_at < width { x[(channel * height + y) * width + x_at] } else { 0.0 }
        };
        let mut output = Vec::new();
        for (out, row, column) in (0..window.outputs)
            .flat_map(|o| (0..rows).flat_map(move |r| (0..columns).map(move |c| (o, r, c))))
        {
            let taps =
                (0..window.inputs).flat_map(|i| (0..k).flat_map(move |y| (0..k).map(move |x| (i, y, x))));
            let product = |(i, y, x): (usize, usize, usize)| {
                weights[0][((out * window.inputs + i) * k + y) * k + x]
                    * pixel(i, row * window.stride + y, column * window.stride + x)
            };
            output.push(weights[1][out] + taps.map(product).sum::<f64>());
        }
        output
    }

    #[test]
    fn conv2d_gradients_and_values_are_correct() {
        let base = Conv2dShape { inputs: 2, outputs: 3, image: [5, 4], kernel: 3, stride: 1, padding: 1 };
        for window in [base, Conv2dShape { stride: 2, ..base }, Conv2dShape { padding: 0, kernel: 2, ..base }]
        {
            let check = GradCheck::new(|registry| Conv2d::new(registry, window), 2, 40);
            check.check_gradients(2e-4);
            check.check_values(1e-5, |x, weights| naive(window, x, weights));
        }
    }
}
