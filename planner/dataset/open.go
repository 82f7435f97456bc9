package dataset

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// A compression is recognized by the first bytes of its files; their suffix is checked against
// that.
type compression struct {
	suffix string
	magic  []byte
	open   func(io.Reader) (io.Reader, error)
}

// zstdWindow bounds the memory that a zstd file may ask for.
const zstdWindow = 256 << 20

// compressions returns the compressions that can be read. None of the readers needs to be closed.
func compressions() []compression {
	return []compression{
		{".gz", []byte{0x1f, 0x8b}, func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) }},
		{".bz2", []byte("BZh"), func(r io.Reader) (io.Reader, error) { return bzip2.NewReader(r), nil }},
		{".xz", []byte{0xfd, '7', 'z', 'X', 'Z', 0}, func(r io.Reader) (io.Reader, error) { return xz.NewReader(r) }},
		{".zst", []byte{0x28, 0xb5, 0x2f, 0xfd}, func(r io.Reader) (io.Reader, error) {
			// With one core it runs in the caller's goroutine and needs no Close.
			return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(zstdWindow))
		}},
	}
}

// decompress returns the plain text of r. The content decides. If the name promises a compression
// that the content does not have, the file is damaged or misnamed, and parsing it as text would
// only produce a confusing error.
func decompress(r io.Reader, name string) (io.Reader, error) {
	buffered := bufio.NewReaderSize(r, 1<<20)
	// Six bytes are the longest magic number.
	start, err := buffered.Peek(6)
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	for _, c := range compressions() {
		inside := bytes.HasPrefix(start, c.magic)
		if !inside && strings.HasSuffix(name, c.suffix) && len(start) > 0 {
			return nil, fmt.Errorf("%s is named %s but has a different format: it is damaged or misnamed", name, c.suffix)
		}
		if !inside {
			continue
		}
		plain, err := c.open(buffered)
		if err != nil {
			return nil, fmt.Errorf("reading %s as %s: %w", name, c.suffix, cutShort(err))
		}
		return plain, nil
	}
	return buffered, nil
}

// cutShort explains the error of a decompressor that has reached the end of its input too early.
func cutShort(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("unexpected end of the compressed data; the file may be truncated: %w", err)
	}
	return err
}

// A countingFile counts the bytes that were read from it, for progress.
type countingFile struct {
	*os.File
	size int64
	read atomic.Int64
}

// openCounting opens a file. A directory is an error here, since reading it would give an obscure
// one.
func openCounting(path string) (*countingFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening the data: %w", err)
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s is a directory: name a libsvm file", path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &countingFile{File: f, size: info.Size()}, nil
}

func (f *countingFile) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	f.read.Add(int64(n))
	return n, err
}

// done returns the part of the file that has been read, from 0 to 1.
func (f *countingFile) done() float64 {
	if f.size == 0 {
		return 1
	}
	return min(1, float64(f.read.Load())/float64(f.size))
}
