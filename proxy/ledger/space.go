package ledger

import (
	"fmt"
	"sync/atomic"
)

// Space bounds the bytes of all ledgers of a state folder. It is safe for concurrent use; a
// nil Space has no limit.
type Space struct {
	Limit int64
	used  atomic.Int64
}

// Used returns the bytes that are reserved.
func (s *Space) Used() int64 { return s.used.Load() }

// reserve charges n bytes, or returns an error where the limit forbids that.
func (s *Space) reserve(n int64) error {
	if s != nil && s.used.Add(n) > s.Limit {
		s.used.Add(-n)
		return fmt.Errorf("%w of %d bytes", errFull, s.Limit)
	}
	return nil
}

// give returns n bytes.
func (s *Space) give(n int64) {
	if s != nil {
		s.used.Add(-n)
	}
}
