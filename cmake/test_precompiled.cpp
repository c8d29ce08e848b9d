// Exists so that the precompiled test headers have a target of their own.
