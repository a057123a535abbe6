// Package test mounts the built program and reads it as users do: real files, a real mount, readers in processes of
// their own. A test's tokens are their own positions.
package test
