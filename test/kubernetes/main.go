// Command kubernetes decodes manifests as the API server does: an unknown field is an error, and so is a value of another type. It prints
// the objects as one list of JSON.
package main

import (
	"bytes"
	"encoding/json"
	"log"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

func main() {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, batchv1.AddToScheme, corev1.AddToScheme} {
		must(add(scheme))
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	var all []runtime.Object
	for _, name := range os.Args[1:] {
		log.SetPrefix(name + ": ")
		text, err := os.ReadFile(name)
		must(err)
		for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
			object, _, err := decoder.Decode(append(document, '\n'), nil, nil)
			must(err)
			all = append(all, object)
		}
	}
	must(json.NewEncoder(os.Stdout).Encode(all))
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
