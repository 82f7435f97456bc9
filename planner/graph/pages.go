package graph

import "unsafe"

// hugePage is the size of a huge page on amd64 and, with pages of 4 KiB, arm64.
const hugePage = 2 << 20

// MakeHuge returns n zeros, like make, on huge pages if the list is large enough to fill some and
// the system has them. It is ordinary memory of the garbage collector's.
func MakeHuge[T any](n int) []T {
	list := make([]T, n)
	AdviseHuge(list)
	return list
}

// AdviseHuge asks for huge pages for the memory of an existing list. Only whole huge pages within
// it are affected, so its neighbours in the heap are not.
func AdviseHuge[T any](list []T) {
	var item T
	size := uintptr(cap(list)) * unsafe.Sizeof(item)
	// A smaller list may not contain a single aligned huge page.
	if size < 2*hugePage {
		return
	}
	memory := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(list))), size)
	// The bytes up to the first boundary of a huge page.
	skip := -uintptr(unsafe.Pointer(&memory[0])) % hugePage
	advise(memory[skip : skip+(size-skip)/hugePage*hugePage])
}
