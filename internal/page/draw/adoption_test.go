package draw

import (
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/page"
)

// An agent says how many connections bypass the proxy, and why, unless there is nothing to say.
func TestAdoptionIsPrinted(t *testing.T) {
	for _, c := range []struct {
		state *page.Adoption
		want  string
	}{
		{nil, ""},
		{&page.Adoption{}, ""},
		{&page.Adoption{Adopted: 3, Left: 2, Past: map[string]int{page.FastLink: 5, "busy": 1, unheard: 7}}, `connections: 6 direct; 3 taken in by the proxy so far, 2 let out again
  1 direct: data is under way on them; tried again
  5 direct: the link is fast; taken in when it is the bottleneck
`},
	} {
		var b strings.Builder
		printAdoption(&b, c.state)
		if b.String() != c.want {
			t.Errorf("%q, want %q", b.String(), c.want)
		}
	}
}
