package jobs

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
)

// kept is the form of a file in a job's folder: JSON with a checksum of the body, so that a file
// that was cut or changed is never taken for what was written. Files from before there were
// versions are the body alone.
type kept struct {
	Version int             `json:"version"`
	CRC     uint32          `json:"crc32c"` // of Body, as it is in the file
	Body    json.RawMessage `json:"body"`
}

const (
	keptVersion = 2
	// maxKept bounds such a file. One with unfinished requests has their values, in base64.
	maxKept = 4 << 30
)

// errDamaged means that a file does not hold what was written to it.
var errDamaged = errors.New("it is damaged")

var keptTable = crc32.MakeTable(crc32.Castagnoli)

// WriteKept writes a file completely or not at all, as far as kills of the process go. It does not
// sync: after a crash of the host nobody needs it, since the job's processes there are gone too. It
// returns the file's size.
func WriteKept(path string, body any) (size int64, err error) {
	text, err := json.Marshal(body)
	if err == nil {
		text, err = json.Marshal(kept{keptVersion, crc32.Checksum(text, keptTable), text})
	}
	if err != nil {
		return 0, fmt.Errorf("encoding %s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return 0, fmt.Errorf("creating a job's directory: %w", err)
	}
	temporary := path + ".new"
	if err := os.WriteFile(temporary, text, 0o600); err != nil {
		os.Remove(temporary) // it takes room, if it is there
		return 0, fmt.Errorf("keeping a job: %w", err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return 0, fmt.Errorf("keeping a job: %w", err)
	}
	return int64(len(text)), nil
}

// ReadKept reads a file of WriteKept into body. The error wraps errDamaged, or fs.ErrNotExist.
func ReadKept(path string, body any) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxKept))
	if err != nil {
		return err
	}
	var k kept
	if err := json.Unmarshal(text, &k); err != nil {
		return fmt.Errorf("%s: %w: %w", path, errDamaged, err)
	}
	switch {
	// Written before there were versions.
	case k.Version == 0 && k.Body == nil && k.CRC == 0:
		k.Body = text
	case k.Version != keptVersion:
		return fmt.Errorf("%s: version %d, this psidecar knows %d: %w, or another psidecar has written it", path, k.Version, keptVersion, errDamaged)
	case crc32.Checksum(k.Body, keptTable) != k.CRC:
		return fmt.Errorf("%s: %w: it does not fit its checksum", path, errDamaged)
	}
	if err := json.Unmarshal(k.Body, body); err != nil {
		return fmt.Errorf("%s: %w: %w", path, errDamaged, err)
	}
	return nil
}
