package client

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/psidecar/psidecar/test/require"
)

func files(t *testing.T, bundle []byte) map[string]string {
	t.Helper()
	z := require.Value(gzip.NewReader(bytes.NewReader(bundle)))(t)
	all := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		text := require.Value(io.ReadAll(r))(t)
		all[h.Name] = string(text)
	}
}

func TestWhatIsMissingIsNamed(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/jobs":
			io.WriteString(w, "two jobs")
		case "/slow":
			<-r.Context().Done()
		default:
			http.Error(w, "not here", http.StatusNotFound)
		}
	}))
	defer server.Close()
	for _, c := range []struct {
		name    string
		each    time.Duration
		sources []BundleSource
		want    map[string]string
		missing []string // beginnings of lines of missing.txt
	}{
		{"what is not there", time.Minute, []BundleSource{
			URLSource("jobs.json", strings.TrimPrefix(server.URL, "http://"), "/jobs"),
			URLSource("none.json", server.URL+"/", "/none"),
			URLSource("gone.json", "http://127.0.0.1:1", "/"),
			TextSource("version.txt", []byte("v1")),
		}, map[string]string{"b/version.txt": "v1", "b/jobs.json": "two jobs"}, []string{"none.json: 404 Not Found: not here", "gone.json: "}},
		{"what does not answer", 20 * time.Millisecond, []BundleSource{
			URLSource("slow.json", server.URL, "/slow"),
			TextSource("version.txt", []byte("v1")),
		}, map[string]string{"b/version.txt": "v1"}, []string{"slow.json: "}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			missing := require.Value(WriteBundle(t.Context(), &out, "b", c.each, c.sources))(t)
			got := files(t, out.Bytes())
			reasons := strings.Split(strings.TrimSpace(got["b/missing.txt"]), "\n")
			delete(got, "b/missing.txt")
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			if len(missing) != len(c.missing) || !slices.EqualFunc(reasons, c.missing, strings.HasPrefix) {
				t.Errorf("missing are %v: %q, want %q", missing, reasons, c.missing)
			}
		})
	}
}

// TextSource is a source whose content is known.
func TextSource(name string, content []byte) BundleSource {
	return BundleSource{name, func(context.Context) ([]byte, error) { return content, nil }}
}

func TestEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := WriteBundle(ctx, io.Discard, "b", time.Second, []BundleSource{TextSource("a", nil)}); !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}
