package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func files(t *testing.T, bundle []byte) map[string]string {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(bundle))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
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
	var out bytes.Buffer
	missing, err := Write(t.Context(), &out, "b", 300*time.Millisecond, []Source{
		Text("version.txt", []byte("v1")),
		URL("jobs.json", strings.TrimPrefix(server.URL, "http://"), "/jobs"),
		URL("none.json", server.URL+"/", "/none"),
		URL("slow.json", server.URL, "/slow"),
		URL("gone.json", "http://127.0.0.1:1", "/"),
	})
	if err != nil {
		t.Fatal(err)
	}
	got := files(t, out.Bytes())
	reasons := got["b/missing.txt"]
	delete(got, "b/missing.txt")
	if diff := cmp.Diff(map[string]string{"b/version.txt": "v1", "b/jobs.json": "two jobs"}, got); diff != "" {
		t.Error(diff)
	}
	if len(missing) != 3 || !strings.Contains(reasons, "none.json: 404 Not Found: not here") || !strings.Contains(reasons, "slow.json: ") || !strings.Contains(reasons, "gone.json: ") {
		t.Errorf("missing are %v:\n%s", missing, reasons)
	}
}

func TestEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Write(ctx, io.Discard, "b", time.Second, []Source{Text("a", nil)}); !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}
