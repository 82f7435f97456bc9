package graph

import "golang.org/x/sys/unix"

// advise wants huge pages from now on for what has not been touched, and now
// for what has been. A system without them says so by an error that changes
// nothing for the caller: the memory is as good, only slower.
func advise(memory []byte) {
	if unix.Madvise(memory, unix.MADV_HUGEPAGE) == nil {
		_ = unix.Madvise(memory, unix.MADV_COLLAPSE)
	}
}
