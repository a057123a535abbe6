// Package failpoint lets tests stop or kill a worker at named points in the code. [Hit] does
// nothing unless a test replaces it, or faults.go does, in a build with the tag faults. A worker
// that dies at a failpoint must be replaceable.
package failpoint

// Hit is called at each failpoint, with the name of the failpoint.
var Hit = func(name string) {}
