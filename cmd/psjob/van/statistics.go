package van

import (
	"slices"
)

// Traffic counts the messages sent to one node.
type Traffic struct {
	Node     int   `json:"node"`
	Messages int64 `json:"messages"`
	Bytes    int64 `json:"bytes"` // of frame bodies
}

// Statistics counts what a van has done. With PS_RESEND, repetitions are counted in
// Sent, too.
type Statistics struct {
	Sent            []Traffic `json:"sent"`
	Received        int64     `json:"received"`         // messages
	Repeated        int64     `json:"repeated"`         // sent again for want of an acknowledgement
	Duplicates      int64     `json:"duplicates"`       // received again
	Dropped         int64     `json:"dropped"`          // thrown away by PS_DROP_MSG
	ControlOverflow int64     `json:"control_overflow"` // control messages without room
	Refused         int64     `json:"refused"`          // connections that did not speak ZMTP
}

// Statistics returns the counts so far, nodes in ascending order of their ids. It may
// be called after Stop.
func (v *Van) Statistics() Statistics {
	s := Statistics{Received: v.received.Load(), Dropped: v.droppedIn.Load(), Refused: v.refused.Load()}
	if r := v.resender.Load(); r != nil {
		s.Repeated, s.Duplicates = r.repeats.Load(), r.duplicates.Load()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for id, d := range v.dealers {
		s.Sent = append(s.Sent, Traffic{Node: id, Messages: d.messages.Load(), Bytes: d.bytes.Load()})
		s.ControlOverflow += d.dropped.Load()
	}
	slices.SortFunc(s.Sent, func(a, b Traffic) int { return a.Node - b.Node })
	return s
}
