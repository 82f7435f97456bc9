package handover

import (
	"testing"
	"time"
)

// What an agent has no room for is held as soon as there is room.
func TestKeepsWhenThereIsRoom(t *testing.T) {
	k := &keeping{wanted: map[uint64]heldPair{1: {}, 2: {}, 3: {}}}
	k.attach(2, time.Second)
	order := func() (kind string, id uint64) {
		m, _, _ := k.nextOrder()
		return m.Kind, m.ID
	}
	for id := range uint64(2) {
		if kind, got := order(); kind != Keep || got != id+1 {
			t.Fatalf("order %q of %d, want to keep %d", kind, got, id+1)
		}
	}
	if kind, id := order(); id != 0 {
		t.Fatalf("order %q of %d, and there is no room", kind, id)
	}
	delete(k.wanted, 1)
	k.toTell = append(k.toTell, 1)
	if kind, id := order(); kind != Drop || id != 1 {
		t.Fatalf("order %q of %d, want to drop 1", kind, id)
	}
	if kind, id := order(); kind != Keep || id != 3 {
		t.Errorf("order %q of %d, want to keep 3, for which there is room now", kind, id)
	}
}
