package observe

import "testing"

// Requests that are looked at stand for as many as their sampling says, and what is not
// known of the others is the more the fewer stand for them.
func TestWeighedRequestsStandForOthers(t *testing.T) {
	var l looked
	l.weighed(true, 4, 1)
	l.weighed(false, 4, 1)
	l.weighed(true, 1, 1)
	if want := (Looked{Requests: 3, Sampled: 2, Estimated: 5, Spread: 12}); l.Requests != want.Requests || l.Sampled != want.Sampled || l.Estimated != want.Estimated || l.Spread != want.Spread {
		t.Errorf("%+v, want %+v", l.Looked, want)
	}
}
