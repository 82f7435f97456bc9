package splitmix

import "testing"

// The first numbers of the published generator with seed 1234567.
func TestNext(t *testing.T) {
	x := uint64(1234567)
	for i, want := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821} {
		if got := Next(x); got != want {
			t.Errorf("number %d: %d, want %d", i, got, want)
		}
		x += Golden
	}
}
