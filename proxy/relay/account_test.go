package relay

import "testing"

// What is reserved in parts may be released as a whole, and the other way round, whatever their sizes.
func TestReservationsAddUp(t *testing.T) {
	const limit = 1 << 20
	const most = limit / stateShare
	m := NewMemory(limit)
	parts := []int{most / 2, baseBuffer, 40 << 10, 4 << 10, 1}
	for range 100 {
		whole := 0
		for _, n := range parts {
			if !m.TryReserve(n) {
				t.Fatalf("%d bytes are not there", n)
			}
			whole += n
		}
		m.Unreserve(whole)
		if !m.TryReserve(whole) {
			t.Fatalf("%d bytes are not there, which were released as a whole", whole)
		}
		for _, n := range parts {
			m.Unreserve(n)
		}
	}
	if !m.TryReserve(most) || m.TryReserve(1) {
		t.Errorf("in the end there are not %d bytes", most)
	}
}
