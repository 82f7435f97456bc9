package deploy

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// apiServer is a Kubernetes API server as far as planners ask one: ConfigMaps
// and Leases in memory, which are made, read, listed by labels, replaced and
// deleted, with versions and preconditions. It takes JSON and protobuf, and
// answers in JSON.
type apiServer struct {
	mu      sync.Mutex
	version int
	objects map[string]runtime.Object // by path
}

// kinds are what it has, by the paths' names.
var kinds = map[string]schema.GroupVersionKind{
	"configmaps": corev1.SchemeGroupVersion.WithKind("ConfigMap"),
	"leases":     coordinationv1.SchemeGroupVersion.WithKind("Lease"),
}

// startAPIServer starts one and returns the path of a kubeconfig for it.
func startAPIServer(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(&apiServer{objects: map[string]runtime.Object{}})
	t.Cleanup(s.Close)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [{"name": "c", "cluster": {"server": %q}}],
	"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}]}`, s.URL)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// ServeHTTP implements http.Handler.
func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer, err := s.answer(r)
	code := http.StatusOK
	if failed, ok := err.(apierrors.APIStatus); ok {
		status := failed.Status()
		status.APIVersion, status.Kind = "v1", "Status"
		answer, code = &status, int(status.Code)
	} else if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(answer) // a client that has gone does not need it
}

func (s *apiServer) answer(r *http.Request) (any, error) {
	place, name, _ := strings.Cut(r.URL.Path, "/namespaces/")
	parts := strings.Split(name, "/") // namespace, resource and perhaps name
	if place != "/api/v1" && place != "/apis/coordination.k8s.io/v1" || len(parts) < 2 || len(parts) > 3 {
		return nil, fmt.Errorf("%s %s is not served here", r.Method, r.URL)
	}
	resource := schema.GroupResource{Resource: parts[1]}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	old, exists := s.objects[r.URL.Path]
	switch {
	case r.Method == http.MethodGet && len(parts) == 2:
		return s.list(r.URL.Path+"/", resource, r.URL.Query().Get("labelSelector"))
	case r.Method == http.MethodPost && len(parts) == 2:
		return s.create(r.URL.Path, resource, body)
	case len(parts) == 3 && !exists:
		return nil, apierrors.NewNotFound(resource, parts[2])
	case r.Method == http.MethodGet:
		return old, nil
	case r.Method == http.MethodPut:
		return s.update(r.URL.Path, resource, old, body)
	case r.Method == http.MethodDelete:
		return s.remove(r.URL.Path, resource, old, body)
	}
	return nil, apierrors.NewMethodNotSupported(resource, r.Method)
}

func (s *apiServer) list(under string, resource schema.GroupResource, selector string) (any, error) {
	chosen, err := labels.Parse(selector)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	kind := kinds[resource.Resource]
	items := []runtime.Object{}
	for path, o := range s.objects {
		if m, err := meta.Accessor(o); err == nil && strings.HasPrefix(path, under) && chosen.Matches(labels.Set(m.GetLabels())) {
			items = append(items, o)
		}
	}
	return map[string]any{"apiVersion": kind.GroupVersion().String(), "kind": kind.Kind + "List",
		"metadata": metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)}, "items": items}, nil
}

func (s *apiServer) create(under string, resource schema.GroupResource, body []byte) (any, error) {
	o, m, err := decode(body)
	if err != nil {
		return nil, err
	}
	path := under + "/" + m.GetName()
	if _, exists := s.objects[path]; exists {
		return nil, apierrors.NewAlreadyExists(resource, m.GetName())
	}
	return s.keep(path, resource, o, m), nil
}

func (s *apiServer) update(path string, resource schema.GroupResource, old runtime.Object, body []byte) (any, error) {
	o, m, err := decode(body)
	if err != nil {
		return nil, err
	}
	if err := unchanged(resource, old, m.GetResourceVersion()); err != nil {
		return nil, err
	}
	return s.keep(path, resource, o, m), nil
}

func (s *apiServer) remove(path string, resource schema.GroupResource, old runtime.Object, body []byte) (any, error) {
	var opts metav1.DeleteOptions
	if len(body) > 0 {
		if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, &opts); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	if p := opts.Preconditions; p != nil && p.ResourceVersion != nil {
		if err := unchanged(resource, old, *p.ResourceVersion); err != nil {
			return nil, err
		}
	}
	delete(s.objects, path)
	return metav1.Status{Status: metav1.StatusSuccess}, nil
}

// unchanged checks that an object still has the version; empty: any.
func unchanged(resource schema.GroupResource, o runtime.Object, version string) error {
	m, err := meta.Accessor(o)
	if err == nil && version != "" && version != m.GetResourceVersion() {
		err = apierrors.NewConflict(resource, m.GetName(), fmt.Errorf("it has version %s, not %s", m.GetResourceVersion(), version))
	}
	return err
}

func decode(body []byte) (runtime.Object, metav1.Object, error) {
	o, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	m, err := meta.Accessor(o)
	return o, m, err
}

func (s *apiServer) keep(path string, resource schema.GroupResource, o runtime.Object, m metav1.Object) runtime.Object {
	s.version++
	m.SetResourceVersion(strconv.Itoa(s.version))
	o.GetObjectKind().SetGroupVersionKind(kinds[resource.Resource])
	s.objects[path] = o
	return o
}
