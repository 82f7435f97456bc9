package model

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// open opens a file that is plain or compressed by gzip, bzip2, xz or zstd, which its
// first bytes show. Closing it closes the file.
func open(path string) (io.ReadCloser, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("training data: %w", err)
	}
	in := bufio.NewReaderSize(file, 1<<16)
	plain, err := decompress(in)
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return struct {
		io.Reader
		io.Closer
	}{plain, file}, nil
}

// decompress recognizes a format by its magic number, whatever the file is called.
func decompress(in *bufio.Reader) (io.Reader, error) {
	start, err := in.Peek(6)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(start, []byte{0x1f, 0x8b}):
		return gzip.NewReader(in)
	case bytes.HasPrefix(start, []byte("BZh")):
		return bzip2.NewReader(in), nil
	case bytes.HasPrefix(start, []byte("\xfd7zXZ\x00")):
		return xz.NewReader(in)
	case bytes.HasPrefix(start, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(256<<20))
	}
	return in, nil
}
