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
		{".gz", gzipMagic, func(r io.Reader) (io.Reader, error) { return newMembers(r.(*bufio.Reader)) }},
		{".bz2", []byte("BZh"), func(r io.Reader) (io.Reader, error) { return bzip2.NewReader(r), nil }},
		{".xz", []byte{0xfd, '7', 'z', 'X', 'Z', 0}, func(r io.Reader) (io.Reader, error) { return xz.NewReader(r) }},
		{".zst", []byte{0x28, 0xb5, 0x2f, 0xfd}, func(r io.Reader) (io.Reader, error) {
			// With one core it runs in the caller's goroutine and needs no Close.
			return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(zstdWindow))
		}},
	}
}

var gzipMagic = []byte{0x1f, 0x8b}

// members reads a gzip file of any number of members, as gunzip does: zeros behind the last one
// are padding.
type members struct {
	in *bufio.Reader
	z  *gzip.Reader
}

func newMembers(in *bufio.Reader) (*members, error) {
	z, err := gzip.NewReader(in)
	if err != nil {
		return nil, err
	}
	z.Multistream(false)
	return &members{in, z}, nil
}

// errBehind is the error for a gzip file that goes on with something else.
var errBehind = errors.New("other data follows the end of the gzip data; all rows before it were read. Remove it: gzip -dc writes the rows alone")

func (m *members) Read(p []byte) (int, error) {
	n, err := m.z.Read(p)
	if err != io.EOF {
		return n, err
	}
	padded := false
	for {
		b, err := m.in.ReadByte()
		if err != nil {
			return n, err
		}
		if b != 0 {
			m.in.UnreadByte()
			break
		}
		padded = true
	}
	if start, _ := m.in.Peek(len(gzipMagic)); padded || !bytes.Equal(start, gzipMagic) {
		return n, errBehind
	}
	if err := m.z.Reset(m.in); err != nil {
		return n, err
	}
	m.z.Multistream(false)
	return n, nil
}

// foreign are formats that are recognized and not read.
var foreign = []struct {
	magic        []byte
	name, advice string
}{
	{[]byte("PK\x03\x04"), "a zip archive", "unpack it first: unzip"},
	{[]byte{0x5d, 0, 0}, "an lzma file", "unpack it first: xz --decompress"},
	{[]byte("7z\xbc\xaf\x27\x1c"), "a 7z archive", "unpack it first: 7z x"},
	{[]byte("Rar!"), "a rar archive", "unpack it first: unrar x"},
	{[]byte{0x04, 0x22, 0x4d, 0x18}, "an lz4 file", "unpack it first: lz4 -d"},
	{[]byte{0x1f, 0x9d}, "a file of compress", "unpack it first: uncompress"},
	{[]byte("PAR1"), "a parquet file", "write it as libsvm text"},
	{[]byte{0xff, 0xfe}, "UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8"},
	{[]byte{0xfe, 0xff}, "UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8"},
}

// byteOrderMark is what some editors put before UTF-8 text.
var byteOrderMark = []byte("\xef\xbb\xbf")

// skipMark returns r without a byte order mark.
func skipMark(r io.Reader) io.Reader {
	buffered := bufio.NewReaderSize(r, 1<<20)
	// An error comes again with the next read.
	if start, _ := buffered.Peek(len(byteOrderMark)); bytes.Equal(start, byteOrderMark) {
		buffered.Discard(len(byteOrderMark))
	}
	return buffered
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
		return skipMark(plain), nil
	}
	for _, f := range foreign {
		if bytes.HasPrefix(start, f.magic) {
			return nil, fmt.Errorf("%s is %s, which is not read: %s", name, f.name, f.advice)
		}
	}
	return skipMark(buffered), nil
}

// cutShort explains the error of a decompressor that has reached the end of its input too early.
func cutShort(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the compressed data end too early; the file may be truncated")
	}
	return err
}

// Open opens a file that is plain or compressed. Closing it closes the file.
func Open(path string) (io.ReadCloser, error) {
	f, err := openCounting(path)
	if err != nil {
		return nil, err
	}
	plain, err := decompress(f, path)
	if err != nil {
		f.Close()
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{plain, f}, nil
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
		err = fmt.Errorf("%s is a directory: name a file", path)
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
