package kv

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/klauspost/compress/zstd"
)

// ReadAccessFile reads a stored log and calls each with every key, in ascending
// order, until each returns an error. It keeps nothing in memory.
func ReadAccessFile(path string, each func(key uint64, c AccessCounts) error) (AccessHeader, error) {
	f, err := os.Open(path)
	if err != nil {
		return AccessHeader{}, fmt.Errorf("reading an access log: %w", err)
	}
	defer f.Close()
	h, err := ReadAccess(f, each)
	if err != nil {
		return h, fmt.Errorf("access log %s: %w", path, err)
	}
	return h, nil
}

// ReadAccess is [ReadAccessFile] for an open stream. It refuses what WriteFile would
// not write, keys that do not ascend among it.
func ReadAccess(r io.Reader, each func(key uint64, c AccessCounts) error) (AccessHeader, error) {
	// A window of at most 64 MiB: the file may come from anywhere, and must not
	// decide on our memory.
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(64<<20))
	if err != nil {
		return AccessHeader{}, err
	}
	defer z.Close()
	in := bufio.NewReaderSize(z, 1<<16)
	// The header is refused if it does not fit into the buffer, which a real one does
	// by far.
	line, err := in.ReadSlice('\n')
	if err != nil {
		return AccessHeader{}, fmt.Errorf("no header line: %w", err)
	}
	var h AccessHeader
	if err := json.Unmarshal(line, &h); err != nil || h.Format != format {
		return h, fmt.Errorf("header %.80q: want the format %s", line, format)
	}
	key := uint64(0)
	for i := range h.Keys {
		var fields [5]uint64
		for j := range fields {
			if fields[j], err = binary.ReadUvarint(in); err != nil {
				return h, fmt.Errorf("key %d of %d: %w", i+1, h.Keys, err)
			}
		}
		// Keys ascend strictly and stay within 64 bits. A difference of 0 is a key
		// for the first one only.
		if fields[0] > math.MaxUint64-key || (fields[0] == 0 && i > 0) || max(fields[1], fields[3]) > math.MaxUint32 {
			return h, fmt.Errorf("key %d of %d: damaged", i+1, h.Keys)
		}
		key += fields[0]
		c := AccessCounts{Pushes: uint32(fields[1]), PushBytes: fields[2], Pulls: uint32(fields[3]), PullBytes: fields[4]}
		if err := each(key, c); err != nil {
			return h, err
		}
	}
	// The header's count must be exact: neither too few keys nor too many pass.
	if _, err := in.ReadByte(); err != io.EOF {
		return h, fmt.Errorf("something follows the last of %d keys", h.Keys)
	}
	return h, nil
}
