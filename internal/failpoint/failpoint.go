// Package failpoint lets tests stop or kill a worker at named points in the code. [Hit] does nothing unless a test, or
// faults.go in a build with the tag faults, replaces it. A worker that dies at a failpoint must be replaceable.
package failpoint

// Hit is called at each failpoint with its name.
var Hit = func(name string) {}
