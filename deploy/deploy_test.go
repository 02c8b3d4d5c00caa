// Package deploy tests the files of this directory. It is a module of its own, so that the
// Kubernetes API types are no dependency of the program.
package deploy

import (
	"os"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

// Each document has only fields that its type has.
func TestKubernetes(t *testing.T) {
	text, err := os.ReadFile("kubernetes/agents.yaml")
	if err != nil {
		t.Fatal(err)
	}
	deployment := &appsv1.Deployment{}
	into := []any{&corev1.ConfigMap{}, deployment, &policyv1.PodDisruptionBudget{}}
	docs := strings.Split(string(text), "\n---\n")
	if len(docs) != len(into) {
		t.Fatalf("%d documents, want %d", len(docs), len(into))
	}
	for i, doc := range docs {
		if err := yaml.UnmarshalStrict([]byte(doc), into[i]); err != nil {
			t.Errorf("document %d: %v", i+1, err)
		}
	}
	pod := deployment.Spec.Template.Spec
	if c := pod.Containers[0]; c.LivenessProbe == nil || c.ReadinessProbe == nil || !*c.SecurityContext.ReadOnlyRootFilesystem || !*pod.SecurityContext.RunAsNonRoot ||
		*pod.TerminationGracePeriodSeconds <= 60 || c.Resources.Limits.Memory().IsZero() {
		t.Errorf("%+v", pod)
	}
}
