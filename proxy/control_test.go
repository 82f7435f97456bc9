package proxy

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/test/require"
)

// The interface for everybody changes nothing and tries nothing; the one for
// trusted users does.
func TestOnlyControlChangesRules(t *testing.T) {
	codec := require.Value(values.New(values.Options{Compact: compact.DefaultLimits, StateBytes: 1 << 20}))(t)
	p := require.Value(New(Options{Values: codec}))(t)
	ask := func(h http.Handler, method, path, body string) int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
		return w.Code
	}
	const rules = `[{"threshold":0.9}]`
	for _, method := range []string{http.MethodPut, http.MethodPost, http.MethodPatch, http.MethodDelete} {
		if code := ask(p.Handler(), method, "/api/v1/codecs", rules); code != http.StatusMethodNotAllowed || len(codec.Rules()) > 0 {
			t.Errorf("%s: %d, and the rules are %v", method, code, codec.Rules())
		}
	}
	if code := ask(p.Handler(), http.MethodGet, "/api/v1/codecs/advice?seconds=1", ""); code != http.StatusNotFound {
		t.Errorf("a trial for everybody: %d", code)
	}
	if code := ask(p.Handler(), http.MethodGet, "/api/v1/codecs", ""); code != http.StatusOK {
		t.Errorf("reading: %d", code)
	}
	if code := ask(p.ControlHandler(), http.MethodPut, "/api/v1/codecs", rules); code != http.StatusOK || len(codec.Rules()) != 1 {
		t.Errorf("%d, and the rules are %v", code, codec.Rules())
	}
}
