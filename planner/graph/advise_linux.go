package graph

import "golang.org/x/sys/unix"

// advise asks for huge pages for memory that is not touched yet, and collapses into huge pages what
// is. Errors are ignored: on a system without huge pages the memory works as well, only slower.
func advise(memory []byte) {
	if unix.Madvise(memory, unix.MADV_HUGEPAGE) == nil {
		_ = unix.Madvise(memory, unix.MADV_COLLAPSE)
	}
}
