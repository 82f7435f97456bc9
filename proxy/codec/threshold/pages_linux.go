package threshold

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/proxy/codec/vector"
)

// largePage is the size of the larger pages of amd64, and of arm64 with pages of 4 KiB.
const largePage = 2 << 20

// inLargePages returns n zeros, in large pages if they fill one and the kernel provides
// them (/sys/kernel/mm/transparent_hugepage/enabled is madvise or always). A residual is
// read and written from end to end with each push, and a TLB has too few entries for that
// many ordinary pages.
func inLargePages[R vector.Float](n int) []R {
	e := make([]R, n)
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(e))), n*int(unsafe.Sizeof(R(0))))
	if before := int(-uintptr(unsafe.Pointer(unsafe.SliceData(e))) % largePage); len(bytes)-before >= largePage {
		whole := (len(bytes) - before) &^ (largePage - 1)
		_ = unix.Madvise(bytes[before:before+whole], unix.MADV_HUGEPAGE) // a kernel without them is slower only
	}
	return e
}
