// Package pages gives memory for large tables that are read and written in no
// order: the graph's, the partitioners'. With pages of 4 KiB nearly every access
// to such a table misses the processor's cache of addresses as well, which takes
// longer than the access itself; with huge pages it does not.
package pages

import "unsafe"

// hugePage is the size of a huge page on amd64 and, with pages of 4 KiB, arm64.
const hugePage = 2 << 20

// Make returns n zeros, like make, on huge pages where there are enough of them
// to fill some and where the system has them. It is ordinary memory that the
// garbage collector takes back.
func Make[T any](n int) []T {
	list := make([]T, n)
	Advise(list)
	return list
}

// Advise asks for huge pages for a list that exists already.
func Advise[T any](list []T) {
	var item T
	size := uintptr(cap(list)) * unsafe.Sizeof(item)
	if size < 2*hugePage {
		return
	}
	memory := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(list))), size)
	skip := -uintptr(unsafe.Pointer(&memory[0])) % hugePage
	advise(memory[skip : skip+(size-skip)/hugePage*hugePage])
}
