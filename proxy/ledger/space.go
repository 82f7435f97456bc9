package ledger

import (
	"fmt"
	"sync/atomic"
)

// Space is how many bytes all ledgers of a state folder may have together.
type Space struct {
	Limit int64
	used  atomic.Int64
}

// Used returns how many they have.
func (s *Space) Used() int64 { return s.used.Load() }

func (s *Space) reserve(n int64) error {
	if s != nil && s.used.Add(n) > s.Limit {
		s.used.Add(-n)
		return fmt.Errorf("%w of %d bytes", errFull, s.Limit)
	}
	return nil
}

func (s *Space) give(n int64) {
	if s != nil {
		s.used.Add(-n)
	}
}
