package mapped

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// reserve extends the file by n bytes that have their place on the disk. Where fallocate is
// missing, as on some network file systems, it writes zeros.
func reserve(f *os.File, from, n int64) error {
	if err := unix.Fallocate(int(f.Fd()), 0, from, n); !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	for zeros := make([]byte, min(n, 1<<20)); n > 0; {
		written, err := f.WriteAt(zeros[:min(n, int64(len(zeros)))], from)
		if err != nil {
			return err
		}
		from, n = from+int64(written), n-int64(written)
	}
	return nil
}

// length returns the file's length.
func (f *File) length() int64 {
	if n := len(f.ends); n > 0 {
		return f.ends[n-1]
	}
	return pageSize
}

// grow adds a segment for at least n bytes. Segments grow with the file, by a quarter of
// it, so that their number stays bounded. Its end is written to the page last: a segment
// without one is not read.
func (f *File) grow(n int) error {
	if len(f.ends) == mostSegment {
		return errors.New("the file has too many segments")
	}
	from := f.length()
	n = max(n, least, min(int(from)/4, mostExtra))
	n = (n + pageSize - 1) &^ (pageSize - 1)
	if err := f.opts.reserve(n); err != nil {
		return err
	}
	err := reserve(f.file, from, int64(n))
	var memory []byte
	if err == nil {
		memory, err = unix.Mmap(int(f.file.Fd()), from, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		f.opts.give(n)
		return errors.Join(fmt.Errorf("%s: %w", filepath.Base(f.path), err), f.file.Truncate(from))
	}
	// What is left of the segment before is not used any more: extents do not span
	// segments.
	f.segments, f.ends, f.used = append(f.segments, memory), append(f.ends, from+int64(n)), 0
	wordAt(f.page[segmentsAt+8*(len(f.ends)-1):]).Store(seal(uint64(from) + uint64(n)))
	return nil
}

func (o *Options) give(n int) {
	if o.Give != nil {
		o.Give(n)
	}
}

// class rounds a size, head included, up to one of eight sizes between a power of two and
// the next, so that a freed extent can be used again for something of about its size. The
// waste is at most an eighth.
func class(n int) int {
	n = max(n+headSize, 2*headSize)
	unit := max(32, 1<<max(0, bits.Len(uint(n-1))-4))
	return (n + unit - 1) &^ (unit - 1)
}
