//! Values that modules keep in a pass.

use super::Pass;
use std::any::{Any, TypeId};
use std::collections::HashMap;

/// Value that modules keep in a [`Pass`] from one module or micro-batch to the next.
pub trait Extension: Any + Send {
    /// Returns true if a pass may end with this value: nothing in it waits for a module.
    fn is_complete(&self) -> bool {
        true
    }
}

/// Values that modules keep in a pass, at most one of each type. The pass itself does not use them.
#[derive(Default)]
pub struct Extensions(HashMap<TypeId, Box<dyn Extension>>);

impl Extensions {
    /// Returns the value of this type, if there is one.
    pub fn get<T: Extension>(&self) -> Option<&T> {
        let value: &dyn Any = &**self.0.get(&TypeId::of::<T>())?;
        value.downcast_ref()
    }

    /// Returns the value of this type for changes, if there is one.
    pub fn get_mut<T: Extension>(&mut self) -> Option<&mut T> {
        let value: &mut dyn Any = &mut **self.0.get_mut(&TypeId::of::<T>())?;
        value.downcast_mut()
    }

    /// Returns the value of this type for changes, and sets the default first if there is none.
    pub fn get_or_default<T: Extension + Default>(&mut self) -> &mut T {
        if self.get::<T>().is_none() {
            self.insert(T::default());
        }
        self.get_mut().expect("it was set above")
    }

    /// Sets the value of this type, and returns the one that was set before.
    pub fn insert<T: Extension>(&mut self, value: T) -> Option<T> {
        let replaced = self.0.insert(TypeId::of::<T>(), Box::new(value))?;
        unboxed(replaced)
    }

    /// Takes the value of this type out, if there is one.
    pub fn remove<T: Extension>(&mut self) -> Option<T> {
        unboxed(self.0.remove(&TypeId::of::<T>())?)
    }

    /// Returns true if a pass may end with all values.
    pub(super) fn are_complete(&self) -> bool {
        self.0.values().all(|value| value.is_complete())
    }
}

/// Returns a value that was stored under the identity of its type `T`.
fn unboxed<T: Extension>(value: Box<dyn Extension>) -> Option<T> {
    let value: Box<dyn Any> = value;
    value.downcast::<T>().ok().map(|value| *value)
}

impl Pass<'_> {
    /// Returns the values that modules keep.
    pub fn extensions(&self) -> &Extensions {
        &self.extensions
    }

    /// Returns the values that modules keep, for changes.
    pub fn extensions_mut(&mut self) -> &mut Extensions {
        &mut self.extensions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Number(u32);
    impl Extension for Number {}

    struct Pending;
    impl Extension for Pending {
        fn is_complete(&self) -> bool {
            false
        }
    }

    #[test]
    fn extensions_have_one_value_of_each_type() {
        let mut extensions = Extensions::default();
        assert!(extensions.get::<Number>().is_none() && extensions.insert(Number(1)).is_none());
        assert!(extensions.insert(Number(2)).is_some_and(|replaced| replaced.0 == 1));
        extensions.get_mut::<Number>().expect("a number").0 += 1;
        assert!(extensions.get::<Number>().is_some_and(|number| number.0 == 3));
        assert_eq!(extensions.get_or_default::<Number>().0, 3, "it is there");
        assert!(extensions.get::<Pending>().is_none() && extensions.are_complete());

        extensions.insert(Pending);
        assert!(!extensions.are_complete(), "one value waits for a module");
        assert!(extensions.remove::<Pending>().is_some() && extensions.are_complete());
        assert!(extensions.remove::<Pending>().is_none() && extensions.remove::<Number>().is_some());
        assert_eq!(extensions.get_or_default::<Number>().0, 0);
    }
}
