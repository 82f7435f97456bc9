package pods

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func pod(uid, namespace, name string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Namespace: namespace, Name: name, Labels: labels},
		Spec:       corev1.PodSpec{NodeName: "node-1"},
	}
}

func TestSelected(t *testing.T) {
	in := map[string]string{"psidecar.io/job": "true"}
	for _, tc := range []struct {
		selector string
		want     map[string]bool
	}{
		{"", map[string]bool{"a": true, "b": true, "c": true, "": true, "unknown": true}},
		{"psidecar.io/job=true", map[string]bool{"a": true, "b": true, "c": false, "": false, "unknown": false}},
		{"psidecar.io/job notin (true)", map[string]bool{"a": true, "b": true, "c": true, "": false, "unknown": false}},
	} {
		p, err := New(&rest.Config{Host: "http://127.0.0.1:1"}, "node-1", tc.selector)
		if err != nil {
			t.Fatal(err)
		}
		p.pod(pod("a", "plain", "by-label", in))
		p.pod(pod("b", "jobs", "by-namespace", nil))
		p.pod(pod("c", "plain", "neither", nil))
		p.pod(pod("d", "jobs", "ended", in))
		p.namespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "jobs", Labels: in}})
		p.noPod(pod("d", "jobs", "ended", in))
		for uid, want := range tc.want {
			if p.Selected(uid) != want {
				t.Errorf("selector %q, pod %q: selected %v", tc.selector, uid, !want)
			}
		}
		if got, ok := p.Lookup("b"); !ok || got != (Pod{"b", "jobs", "by-namespace", "node-1"}) {
			t.Errorf("pod b is %+v, %v", got, ok)
		}
		if _, ok := p.Lookup("d"); ok {
			t.Error("pod d is there still")
		}
		p.noNamespace(cache.DeletedFinalStateUnknown{}.Obj)
	}
	if _, err := New(&rest.Config{}, "node-1", "a=b=c"); err == nil {
		t.Error("a selector that is none")
	}
}

// Where the API server fails, Run asks again until its context ends.
func TestNoAnswer(t *testing.T) {
	asked := make(chan string, 16)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- r.URL.Query().Get("fieldSelector"):
		default:
		}
		http.Error(w, "no", http.StatusInternalServerError)
	}))
	defer server.Close()
	p, err := New(&rest.Config{Host: server.URL}, "node-1", "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	for range 2 {
		select {
		case which := <-asked:
			if which != "spec.nodeName=node-1" {
				t.Errorf("it asks for %q", which)
			}
		case err := <-ended:
			t.Fatalf("it has ended: %v", err)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}
